"""Arguments that several commands share."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

_SOURCES = "a module file, its folder, file.py:name, or component.yaml"


def add_component(parser: ArgumentParser) -> None:
    """The component that the command is about, by its files."""
    parser.add_argument("component", metavar="COMPONENT", help=_SOURCES)
    _add_peer_imports(parser)


def add_component_or_url(parser: ArgumentParser) -> None:
    """The component that the command is about: loaded here, or served somewhere."""
    parser.add_argument(
        "component", metavar="COMPONENT", help=f"{_SOURCES}; or the URL of a served component"
    )
    _add_peer_imports(parser)
    add_token(parser)


def add_token(parser: ArgumentParser) -> None:
    """What a server asks for."""
    parser.add_argument("--token-file", type=Path, help="with the token that a server asks for")


def _add_peer_imports(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--peer-imports",
        action="store_true",
        help="leave imports of tesseract_core to an installed tesseract-core",
    )


def add_payload(parser: ArgumentParser) -> None:
    """What the endpoint is called with."""
    parser.add_argument(
        "payload",
        metavar="PAYLOAD",
        nargs="?",
        help='JSON such as {"inputs": {…}}, @file, or - for standard input; no inputs by default',
    )
    parser.add_argument(
        "--set",
        "-s",
        dest="values",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="one input by its path, for example a.b=1.5; repeat for more",
    )


def add_folders(parser: ArgumentParser) -> None:
    """Where files are read and written."""
    parser.add_argument(
        "--input-path",
        "-i",
        type=Path,
        default=Path(),
        help="folder that the payload may name files in",
    )
    parser.add_argument(
        "--output-path",
        "-o",
        type=Path,
        default=Path(),
        help="folder for files that the run writes",
    )


def add_derive_hvp(parser: ArgumentParser) -> None:
    """Whether second derivatives may come from differences."""
    parser.add_argument(
        "--derive-hvp",
        action="store_true",
        help="second derivatives by differencing the VJP, where the component has none",
    )

"""The component or the server that a command is about: the arguments that name it, and how it is opened."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chainrule._describe import did_you_mean_file
from chainrule._errors import InputError
from chainrule.runtime import ComponentConfig, LocalComponent, load_component
from chainrule.runtime.internal import COMPONENT_FILES, check_sources, split_source

if TYPE_CHECKING:  # most commands call a component in this process and need no client
    from chainrule.client import Component
    from chainrule.client.internal import Server

_ADDRESS = re.compile(r"[\w.-]+:\d+(/|$)")


class Arguments(Protocol):
    """What arguments are added to: a parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> Any:
        """Add an argument."""


# The OpenAPI document can be made without the files that a run needs.
_DESCRIBE = {"require_files": False}


def add_component(parser: ArgumentParser, *, is_optional: bool = False) -> None:
    """The component that the command is about: loaded here, or served somewhere."""
    parser.add_argument(
        "component",
        metavar="COMPONENT",
        nargs="?" if is_optional else None,
        help="A module file, its folder, file.py:name, a component.yaml, an FMU, an ONNX model, or the URL "
        "of a served component (several URLs with commas: any of these servers answers)",
    )
    parser.add_argument(
        "--peer-imports",
        action="store_true",
        help="Import tesseract_core from an installed tesseract-core, not from Chainrule",
    )
    add_token(parser)


def add_components(parser: ArgumentParser) -> None:
    """The components that the command offers to callers; their files are here.

    An image names its component in `CHAINRULE_COMPONENT`.
    """
    named = os.environ.get("CHAINRULE_COMPONENT")
    parser.add_argument(
        "components",
        metavar="COMPONENT",
        nargs="*" if named else "+",
        default=[named],
        help="One or several components (default: the one that CHAINRULE_COMPONENT names, if any)",
    )


def add_server(parser: ArgumentParser) -> None:
    """The server that the command is about."""
    parser.add_argument(
        "url", metavar="URL", help="URL of the server, such as http://localhost:8000"
    )
    add_token(parser)


def add_token(parser: ArgumentParser) -> None:
    """The token that a server asks for."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="Send the server the token in this file (default: no token)",
    )


def add_folders(parser: Arguments) -> None:
    """Where files are read and written."""
    parser.add_argument(
        "--input-path",
        "-i",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="Let payloads name files in this folder (default: the working directory)",
    )
    parser.add_argument(
        "--output-path",
        "-o",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="Write the files of a run to this folder (default: the working directory)",
    )


def add_derive_hvp(parser: Arguments) -> None:
    """Whether second derivatives may come from differences."""
    parser.add_argument(
        "--derive-hvp",
        action="store_true",
        help="Compute second derivatives as differences of the VJP where the component has none",
    )


def open_component(
    options: Namespace, config: ComponentConfig | Mapping[str, Any] | None = None
) -> LocalComponent:
    """Load the component that `add_component`'s arguments name.

    Raises:
        InputError: there is no such file (`component_missing`): the caller's mistake, not the author's.
    """
    check_exists(options.component)
    return load_component(options.component, config=config, redirect_peer=not options.peer_imports)


def open_served(options: Namespace) -> Component:
    """The served component that `add_component`'s arguments name.

    Raises:
        InputError: the URL is not one, or the token file cannot be read.
    """
    from chainrule.client import Component

    urls = served_urls(options.component)
    if len(urls) > 1:
        return Component.from_urls(urls, token_file=options.token_file)
    return Component.from_url(options.component, token_file=options.token_file)


@contextmanager
def opened(
    options: Namespace, config: ComponentConfig | Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """The component that `add_component`'s arguments name, loaded here or served elsewhere."""
    if not is_url(options.component):
        yield open_component(options, config)
        return
    with open_served(options) as served:
        yield served


def open_server(options: Namespace, *, timeout_s: float = 30.0) -> Server:
    """The server that `add_server`'s arguments name.

    Raises:
        InputError: the URL is not one, or the token file cannot be read.
    """
    from chainrule.client.internal import HttpTransport

    return HttpTransport(options.url, token_file=options.token_file, timeout=timeout_s).server


def read_document(options: Namespace) -> dict[str, Any]:
    """The OpenAPI document of the component that `add_component`'s arguments name; nothing is run."""
    with opened(options, _DESCRIBE) as component:
        return component.openapi_schema


def is_url(component: str) -> bool:
    """Whether a component is named by where it is served."""
    return component.startswith(("http://", "https://"))


def served_urls(component: str) -> list[str]:
    """The URLs in a list with commas, such as `http://a:8000,http://b:8000`."""
    return re.split(r",(?=https?://)", component)


def check_exists(component: str) -> None:
    """Refuse a component that does not exist.

    Raises:
        InputError: there is no such file (`component_missing`), or it is a URL (`component_not_here`).
    """
    if is_url(component):
        raise InputError(
            f"This command needs the component's files; found the URL {component}. Name a module file, "
            "its folder, file.py:name, a component.yaml, an FMU or an ONNX model.",
            code="component_not_here",
        )
    file = component_file(component)
    if not file.exists() and _ADDRESS.match(component):
        raise InputError(
            f"There is no component at {component!r}. The URL of a served component begins with http:// or "
            f"https://: http://{component}",
            code="component_missing",
        )
    if not file.exists():
        raise InputError(
            f"There is no component at {str(file)!r}.{did_you_mean_file(file, COMPONENT_FILES)} Name a "
            "module file, its folder, file.py:name, or a component.yaml; `chainrule init` starts one.",
            code="component_missing",
        )


def check_source(component: str) -> None:
    """Refuse a component that does not exist, or whose file is not Python, before the payload is read.

    Raises:
        InputError: as in `check_exists`.
        DefinitionError: the folder has no component (`module_missing`), or its file cannot be compiled
            (`module_failed`).
    """
    check_exists(component)
    file = component_file(component)
    check_sources(file)


def component_folder(component: str) -> Path:
    """The folder of a component; the working directory for one that is served elsewhere."""
    if is_url(component):
        return Path()
    file = component_file(component)
    return file if file.is_dir() else file.parent


def component_file(source: str) -> Path:
    """The file or folder that a component is named by."""
    return split_source(source)[0]

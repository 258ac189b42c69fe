"""`chainrule mcp`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule.cli._sources import add_components, check_exists


def add_arguments(parser: ArgumentParser) -> None:
    """The components, and how they are run."""
    add_components(parser)
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="Processes per component"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="Stop a call after this many seconds (default: no limit)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="Keep arrays that are too large to write out here (default: a temporary folder)",
    )
    parser.add_argument(
        "--max-elements", type=int, default=10_000, metavar="N", help="Write larger arrays to files"
    )
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    """Answer requests until standard input ends."""
    from chainrule.mcp import serve_stdio

    for source in options.components:
        check_exists(source)
    serve_stdio(
        options.components,
        workers=options.workers,
        timeout_s=options.timeout,
        folder=options.folder,
        max_elements=options.max_elements,
    )
    return 0

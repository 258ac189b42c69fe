"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AllowReference",
    "Component",
    "Compression",
    "InputPath",
    "Json",
    "OutputFile",
    "OutputFormat",
    "OutputPath",
    "Payload",
    "PeerImports",
    "Profiling",
    "Set",
    "Tracing",
]

Component = Annotated[
    str,
    typer.Argument(
        help="A module file, its folder, file.py:name, or component.yaml.", metavar="COMPONENT"
    ),
]
Payload = Annotated[
    str | None,
    typer.Argument(
        help='JSON such as {"inputs": {…}}, @file, or - for standard input.', metavar="PAYLOAD"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="One input by its path; repeat for more.",
        metavar="PATH=VALUE",
    ),
]
InputPath = Annotated[
    Path, typer.Option("--input-path", "-i", help="Folder that the payload may name files in.")
]
OutputPath = Annotated[
    Path, typer.Option("--output-path", "-o", help="Folder for files that the run writes.")
]
OutputFormat = Annotated[
    str, typer.Option("--output-format", "-f", help="json, json+base64 or json+binref.")
]
Compression = Annotated[str | None, typer.Option(help="lz4, for base64 and binref.")]
OutputFile = Annotated[
    str | None, typer.Option(help="Write the result to this file in the output path instead.")
]
Profiling = Annotated[bool, typer.Option("--profiling", help="Log a profile of the call.")]
Tracing = Annotated[bool, typer.Option("--tracing", help="Log payload and result, abbreviated.")]
AllowReference = Annotated[
    list[str] | None,
    typer.Option(help="Open component references of this kind: api_path, url or image."),
]
PeerImports = Annotated[
    bool,
    typer.Option(
        "--peer-imports", help="Leave imports of tesseract_core to an installed tesseract-core."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write for machines, errors included.")]

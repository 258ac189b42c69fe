"""`chainrule schema`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from chainrule.cli._arguments import add_component_or_url
from chainrule.cli._source import read_document
from chainrule.cli._streams import result_stream

_PARTS = {"inputs": "Apply_InputSchema", "outputs": "Apply_OutputSchema"}


def add_arguments(parser: ArgumentParser) -> None:
    """The component, and which part of the document."""
    add_component_or_url(parser)
    parser.add_argument(
        "--part", choices=("openapi", *_PARTS), default="openapi", help="the whole, or one side"
    )


def run(options: Namespace) -> int:
    """Print the OpenAPI document, or the JSON schema of one side."""
    with result_stream() as stdout:
        document = read_document(options)
        if options.part in _PARTS:
            document = {
                "$ref": f"#/components/schemas/{_PARTS[options.part]}",
                "components": {"schemas": document["components"]["schemas"]},
            }
        stdout.write([json.dumps(document, indent=2, sort_keys=True).encode(), b"\n"])
    return 0

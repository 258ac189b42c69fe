"""`chainrule schema`."""

from __future__ import annotations

import json

from chainrule._errors import InputError
from chainrule.cli._failures import failures
from chainrule.cli._source import open_component
from chainrule.cli._streams import result_stream

__all__ = ["schema"]

_PARTS = {"inputs": "Apply_InputSchema", "outputs": "Apply_OutputSchema"}


def schema(source: str, part: str, *, errors_as_json: bool) -> None:
    """Print the OpenAPI document, or the JSON schema of one side."""
    with failures(as_json=errors_as_json), result_stream() as stdout:
        if part != "openapi" and part not in _PARTS:
            raise InputError(
                f"--part is openapi, inputs or outputs; found {part!r}.", code="bad_option"
            )
        document = open_component(source).openapi_schema
        if part != "openapi":
            definitions = document["components"]["schemas"]
            document = {
                "$ref": f"#/components/schemas/{_PARTS[part]}",
                "components": {"schemas": definitions},
            }
        stdout.write([json.dumps(document, indent=2, sort_keys=True).encode(), b"\n"])

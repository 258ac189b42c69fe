"""`chainrule check`."""

from __future__ import annotations

import json

from chainrule.cli._failures import failures
from chainrule.cli._source import open_component
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text

__all__ = ["check"]


def check(source: str, *, as_json: bool, redirect_peer: bool = True) -> None:
    """Load a component, build everything that callers need, and say which endpoints there are."""
    with failures(as_json=as_json), result_stream() as stdout:
        component = open_component(source, redirect_peer=redirect_peer)
        component.openapi_schema  # noqa: B018  (built here to find fields that cannot be described)
        endpoints = {name: str(c) for name, c in component.capabilities.items()}
        if as_json:
            text = json.dumps({"ok": True, "name": component.name, "endpoints": endpoints}) + "\n"
        else:
            text = table_text(
                f"{component.name} {component.version} is fine",
                ("endpoint", "available"),
                list(endpoints.items()),
            )
        stdout.write([text.encode()])

"""`chainrule check`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from chainrule.cli._arguments import add_component
from chainrule.cli._source import DESCRIBE, open_component
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Only the component."""
    add_component(parser)


def run(options: Namespace) -> int:
    """Load a component, build everything that callers need, and say which endpoints there are."""
    with result_stream() as stdout:
        component = open_component(options, DESCRIBE)
        # Built here to find fields that cannot be described to callers.
        facts = component.openapi_schema["info"]
        endpoints = {name: str(c) for name, c in component.capabilities.items()}
        if options.json:
            text = json.dumps({"ok": True, "name": facts["title"], "endpoints": endpoints}) + "\n"
        else:
            title = f"{facts['title']} {facts['version']} is fine"
            text = table_text(title, ("endpoint", "available"), list(endpoints.items()))
        stdout.write([text.encode()])
    return 0

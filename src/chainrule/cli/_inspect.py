"""`chainrule inspect`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from chainrule.cli._arguments import add_component_or_url
from chainrule.cli._facts import component_facts
from chainrule.cli._source import read_document
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text


def add_arguments(parser: ArgumentParser) -> None:
    """Only the component."""
    add_component_or_url(parser)


def run(options: Namespace) -> int:
    """Show what a component is and what it takes and gives."""
    with result_stream() as stdout:
        facts = component_facts(read_document(options))
        text = json.dumps(facts, indent=2) + "\n" if options.json else _as_tables(facts)
        stdout.write_text(text)
    return 0


def _as_tables(facts: dict[str, Any]) -> str:
    identity = ("version", "content_hash", "description", "batching")
    rows = [(key, str(facts[key])) for key in identity if facts[key]]
    parts = [table_text(facts["name"], ("", ""), rows)]
    for side in ("inputs", "outputs"):
        fields = [
            (name, field["type"], "yes" if field["required"] else "no", field["description"])
            for name, field in facts[side].items()
        ]
        parts.append(table_text(side, ("field", "type", "required", "description"), fields))
    endpoints = list(facts["endpoints"].items())
    parts.append(table_text("endpoints", ("endpoint", "available"), endpoints))
    return "\n".join(parts)

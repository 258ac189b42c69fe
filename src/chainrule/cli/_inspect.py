"""`chainrule inspect`."""

from __future__ import annotations

import json
from typing import Any

from chainrule.cli._facts import component_facts
from chainrule.cli._failures import failures
from chainrule.cli._source import open_component
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text

__all__ = ["inspect"]


def inspect(source: str, *, as_json: bool) -> None:
    """Show what a component is and what it takes and gives."""
    with failures(as_json=as_json), result_stream() as stdout:
        facts = component_facts(open_component(source))
        text = json.dumps(facts, indent=2) + "\n" if as_json else _as_tables(facts)
        stdout.write([text.encode()])


def _as_tables(facts: dict[str, Any]) -> str:
    head = [
        (key, str(facts[key] or ""))
        for key in ("version", "content_hash", "description", "batching")
    ]
    parts = [table_text(facts["name"], ("", ""), head)]
    for side in ("inputs", "outputs"):
        rows = [
            (name, field["type"], "yes" if field["required"] else "no", field["description"])
            for name, field in facts[side].items()
        ]
        parts.append(table_text(side, ("field", "type", "required", "description"), rows))
    parts.append(
        table_text("endpoints", ("endpoint", "available"), list(facts["endpoints"].items()))
    )
    return "\n".join(parts)

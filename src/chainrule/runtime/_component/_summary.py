"""A component at a glance, for the terminal and for notebooks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chainrule.runtime._component._document import (
    SIDES,
    Field,
    capabilities_of,
    fields_of,
    full_name,
)

_MAX_FIELDS = 12
_MAX_DEFAULT = 40


def summary_text(document: Mapping[str, Any], place: str) -> str:
    """Name, version, place, schema, and what is differentiable and how; about a screenful."""
    info = document["info"]
    lines = [f"Component {full_name(info['title'], info['version'])} ({place})"]
    for side in SIDES:
        fields = fields_of(document, side)
        width = max((len(field.path) for field in fields), default=0)
        for index, field in enumerate(fields[:_MAX_FIELDS]):
            heading = f"{side.lower()}s" if index == 0 else ""
            lines.append(f"  {heading:<10}{field.path:<{width}}  {_describe(field)}")
        if len(fields) > _MAX_FIELDS:
            lines.append(f"  {'':<10}… and {len(fields) - _MAX_FIELDS} more")
    lines.append(f"  {'endpoints':<10}{_endpoints(document)}")
    return "\n".join(lines)


def summary_html(document: Mapping[str, Any], place: str) -> str:
    """The same for a notebook."""
    info = document["info"]
    title = escape(full_name(info["title"], info["version"]))
    tables = "".join(
        f"<details open><summary>{side.lower()}s</summary>{fields_html(fields_of(document, side))}"
        "</details>"
        for side in SIDES
    )
    return (
        f"<div><strong>{title}</strong> <small>{escape(place)}</small><br>"
        f"{escape(info.get('description', ''))}{tables}"
        f"<small>{escape(_endpoints(document))}</small></div>"
    )


def fields_html(fields: Sequence[Field]) -> str:
    """Fields of a schema as a table."""
    head = "".join(f"<th>{name}</th>" for name in ("path", "type", "∂", "default", ""))
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(field)) + "</tr>"
        for field in fields
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(field: Field) -> tuple[str, ...]:
    default = "" if field.default is None else json.dumps(field.default)
    shown = default if len(default) <= _MAX_DEFAULT else f"{default[:_MAX_DEFAULT]}…"
    mark = "∂" if field.is_differentiable else ""
    return field.path, field.type, mark, shown, field.description


def _describe(field: Field) -> str:
    marks = [
        *(["differentiable"] if field.is_differentiable else []),
        *([] if field.is_required else ["optional"]),
    ]
    return " ".join([field.type, *(f"({mark})" for mark in marks)])


def _endpoints(document: Mapping[str, Any]) -> str:
    present = {
        name: capability
        for name, capability in capabilities_of(document).items()
        if capability.status != "absent"
    }
    return ", ".join(f"{name} {capability}" for name, capability in present.items())

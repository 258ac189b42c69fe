"""A component at a glance, for the terminal and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from chainrule.client._facts import SIDES, Field, capabilities_of, fields_of

__all__ = ["summary_html", "summary_text"]

_MAX_FIELDS = 12


def summary_text(document: Mapping[str, Any], place: str) -> str:
    """Name, version, place, schema, and what is differentiable and how; about a screenful."""
    info = document["info"]
    lines = [f"Component {info['title']} {info['version']} ({place})"]
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
    """The same as a small table."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    rows = []
    for side in SIDES:
        for field in fields_of(document, side):
            cells = (side.lower(), field.path, field.type, "∂" if field.is_differentiable else "")
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    description = escape(info.get("description", ""))
    return (
        f"<div><strong>{title}</strong> <small>{escape(place)}</small><br>{description}"
        f"<table><thead><tr><th></th><th>path</th><th>type</th><th>differentiable</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table><small>{escape(_endpoints(document))}</small></div>"
    )


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

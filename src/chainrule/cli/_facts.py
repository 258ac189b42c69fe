"""What there is to say about a component, as data: tables and `--json` show the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.runtime.internal import Side, capabilities_of, fields_of


def component_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Identity, fields and endpoints of a component, from its OpenAPI document."""
    info = document["info"]
    return {
        "name": info["title"],
        "version": info["version"],
        "content_hash": info.get("x-content-hash"),
        "description": info.get("description", ""),
        "batching": document.get("x-batching"),
        "inputs": _fields(document, "Input"),
        "outputs": _fields(document, "Output"),
        "differentiable_inputs": _differentiable(document, "Input"),
        "differentiable_outputs": _differentiable(document, "Output"),
        "endpoints": endpoint_facts(document),
    }


def endpoint_facts(document: Mapping[str, Any]) -> dict[str, str]:
    """How each endpoint is available, in words."""
    return {name: str(capability) for name, capability in capabilities_of(document).items()}


def _fields(document: Mapping[str, Any], side: Side) -> dict[str, dict[str, Any]]:
    """Every leaf by its path; members of a union share one."""
    found: dict[str, dict[str, Any]] = {}
    for field in fields_of(document, side):
        marked = f"{field.type} differentiable" if field.is_differentiable else field.type
        if field.path in found:
            found[field.path]["type"] += f" | {marked}"
            continue
        found[field.path] = {
            "type": marked,
            "required": field.is_required,
            "description": field.description,
        }
    return found


def _differentiable(document: Mapping[str, Any], side: Side) -> dict[str, str]:
    return {f.path: f.type for f in fields_of(document, side) if f.is_differentiable}

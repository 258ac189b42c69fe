"""What there is to say about a component, as data: tables and `--json` show the same."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from chainrule.runtime._component import LocalComponent
from chainrule.runtime._component._models import spec_of

__all__ = ["component_facts"]


def component_facts(component: LocalComponent) -> dict[str, Any]:
    """Identity, fields and endpoints of a component."""
    return {
        "name": component.name,
        "version": component.version,
        "content_hash": component.content_hash,
        "description": component.description,
        "batching": component.batching,
        "is_jax": component.jax_function is not None,
        "inputs": _fields(component.input_schema),
        "outputs": _fields(component.output_schema),
        "differentiable_inputs": {k: str(v) for k, v in component.differentiable_inputs.items()},
        "differentiable_outputs": {k: str(v) for k, v in component.differentiable_outputs.items()},
        "endpoints": {name: str(c) for name, c in component.capabilities.items()},
    }


def _fields(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "type": _type_text(info.annotation),
            "required": info.is_required(),
            "description": info.description or "",
        }
        for name, info in model.model_fields.items()
    }


def _type_text(annotation: Any) -> str:
    spec = spec_of(annotation)
    if spec is not None:
        return f"{spec}{' differentiable' if spec.differentiable else ''}"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

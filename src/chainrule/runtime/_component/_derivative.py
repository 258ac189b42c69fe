"""The three derivative endpoints: one class over `DerivativeKind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chainrule.runtime._component._author import call_author, check_signature
from chainrule.runtime._component._endpoints import Payload, check_fields
from chainrule.runtime._component._requests import read_paths, read_vector
from chainrule.runtime._component._results import read_derivative
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._derivatives._kinds import DERIVATIVES, DerivativeKind

__all__ = ["Derivative", "derivative_endpoint"]


@dataclass(frozen=True)
class Derivative:
    """`jacobian`, `jacobian_vector_product` or `vector_jacobian_product`."""

    kind: DerivativeKind
    schemas: Schemas
    function: Callable[..., Any]

    def __call__(self, payload: Payload, context: Context) -> Any:
        """The derivative as a plain tree keyed by paths."""
        kind, schemas = self.kind, self.schemas
        check_fields(payload, kind.argument_names, kind.endpoint)
        inputs = schemas.read_inputs(payload["inputs"], kind.endpoint, context)
        blocks = read_paths(kind, schemas, inputs, payload)
        arguments: dict[str, Any] = {
            "inputs": inputs,
            kind.inputs_argument: set(blocks.inputs),
            kind.outputs_argument: set(blocks.outputs),
        }
        if kind.vector is not None:
            arguments[kind.vector] = read_vector(kind, blocks, payload[kind.vector], context)
        result = call_author(self.function, kind.endpoint, **arguments)
        return read_derivative(kind, blocks, result)


def derivative_endpoint(name: str, schemas: Schemas, function: Callable[..., Any]) -> Derivative:
    """The derivative endpoint of a name."""
    (kind,) = (kind for kind in DERIVATIVES if kind.endpoint == name)
    check_signature(function, name, kind.argument_names)
    return Derivative(kind, schemas, function)

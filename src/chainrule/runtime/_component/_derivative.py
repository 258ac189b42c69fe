"""The derivative endpoints: one class over `DerivativeKind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from chainrule.runtime._component._author import (
    call_author,
    check_signature,
    takes_argument,
)
from chainrule.runtime._component._endpoints import Payload, check_fields
from chainrule.runtime._component._output_shapes import OutputShapes
from chainrule.runtime._component._requests import Blocks, read_batched, read_paths, read_vectors
from chainrule.runtime._component._results import read_derivative, read_value
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._derivatives._derive import batch_length, batched_product
from chainrule.runtime._derivatives._kinds import BATCHED, COTANGENT, DERIVATIVES, DerivativeKind


@dataclass(frozen=True)
class Derivative:
    """Any of the derivative endpoints.

    Attributes:
        kind: which of them.
        schemas: of the component.
        function: the author's, or one that Chainrule made.
        can_batch: whether the function takes `batched`; it is called once per vector otherwise.
        shapes: says what is known of the outputs.
    """

    kind: DerivativeKind
    schemas: Schemas
    function: Callable[..., Any]
    can_batch: bool
    shapes: OutputShapes

    def __call__(self, payload: Payload, context: Context) -> Any:
        """The derivative as a plain tree keyed by paths."""
        kind, schemas = self.kind, self.schemas
        check_fields(payload, kind.required_names, kind.endpoint, kind.optional_names)
        inputs = schemas.read_inputs(payload["inputs"], kind.endpoint, context)
        blocks = self._blocks(inputs, payload, context)
        arguments: dict[str, Any] = {
            "inputs": inputs,
            kind.inputs_argument: set(blocks.inputs),
            kind.outputs_argument: set(blocks.outputs),
        }
        if read_batched(kind, payload):
            return self._batch(blocks, arguments, payload, context)
        arguments |= read_vectors(kind, blocks, payload, context)
        result = call_author(self.function, kind.endpoint, **arguments)
        if not kind.with_value:
            return read_derivative(kind, blocks, result)
        value, gradient = read_value(kind, schemas, result, context)
        return {"outputs": value, "gradient": read_derivative(kind, blocks, gradient)}

    def _blocks(self, inputs: BaseModel, payload: Payload, context: Context) -> Blocks:
        blocks = read_paths(self.kind, self.schemas, inputs, payload)
        outputs = self.shapes.named(blocks.outputs, context)
        if COTANGENT in self.kind.vectors:
            outputs = self.shapes.exact(outputs, inputs)
        return Blocks(blocks.inputs, outputs)

    def _batch(
        self, blocks: Blocks, arguments: dict[str, Any], payload: Payload, context: Context
    ) -> Any:
        """The products of a batch of vectors: in one call where the function can, else one by one."""
        kind = self.kind
        ((_, vector),) = read_vectors(kind, blocks.with_batch(None), payload, context).items()
        answers = blocks.with_batch(batch_length(vector)) if self.can_batch else blocks

        def product(*values: Any, **options: Any) -> Any:
            named = dict(zip(kind.argument_names, values, strict=True))
            result = call_author(self.function, kind.endpoint, **named, **options)
            return read_derivative(kind, answers, result)

        inputs, input_paths, output_paths = arguments.values()
        return batched_product(
            product, inputs, input_paths, output_paths, vector, can_batch=self.can_batch
        )


def derivative_endpoint(
    name: str, schemas: Schemas, function: Callable[..., Any], shapes: OutputShapes
) -> Derivative:
    """The derivative endpoint of a name."""
    (kind,) = (kind for kind in DERIVATIVES if kind.endpoint == name)
    check_signature(function, name, kind.argument_names)
    can_batch = kind.takes_batches and takes_argument(function, BATCHED)
    return Derivative(kind, schemas, function, can_batch, shapes)

"""y = factor * x + offset + plain, and the same for every array of two collections; NumPy, by hand."""

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64

Vector = Differentiable[Array[(None,), Float64]]


class InputSchema(BaseModel):
    x: Vector
    y: Vector | None = None
    values: dict[str, Vector] = {}
    items: list[Vector] = []
    offset: Vector | None = None
    factor: int = 2
    plain: float = 0.0


class OutputSchema(BaseModel):
    y: Vector
    values: dict[str, Vector]
    items: list[Vector]
    label: str
    count: int


def apply(inputs):
    offset = 0.0 if inputs.offset is None else inputs.offset
    return OutputSchema(
        y=inputs.factor * inputs.x + offset + inputs.plain,
        values={key: inputs.factor * value for key, value in inputs.values.items()},
        items=[inputs.factor * value for value in inputs.items],
        label="three" if inputs.x.size == 3 else "other",
        count=inputs.x.size,
    )


def abstract_eval(abstract_inputs):
    return {
        "y": abstract_inputs.x,
        "values": abstract_inputs.values,
        "items": abstract_inputs.items,
        "label": "abstract",
        "count": 0,
    }


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    pairs = {"x": "y", "offset": "y"}
    found = {}
    for path in vjp_inputs:
        cotangent = cotangent_vector.get(pairs.get(path, path), np.zeros(()))
        shape = np.shape(inputs.x)
        found[path] = np.broadcast_to((1 if path == "offset" else inputs.factor) * cotangent, shape)
    return found

"""Defaults that only the author's code knows, long names, and arrays that are larger than a screen."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Differentiable, Float32, Float64, Int64


class Layer(BaseModel):
    thickness: Differentiable[Float64] = 1.0
    conductivity_of_the_whole_material: Differentiable[Float64] = 2.0


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64, "kg"]] = Field(
        default_factory=lambda: np.array([2.0, 3.0])
    )
    factors: dict[str, float] = Field(default_factory=lambda: {"a": 1.5, "b": 1.2})
    layer: Layer = Field(default_factory=lambda: Layer(thickness=1.0))
    layers: dict[str, Layer] = {"outer": Layer(), "inner": Layer()}
    optional: Array[(None, None), Float64, "m"] | None = None
    offset: float = Field(0.0, ge=0, le=10)
    other: float = Field(0.0, ge=0)
    rows: int = 3


class OutputSchema(BaseModel):
    y: Differentiable[Float64]
    tall: Array[(None, 2), Float64]
    long: Array[(None,), Float64]
    warm: Array[(2, 2), Float64]
    nearly: Array[(3, 2, 2), Float64]
    colours: Array[(4, 4, 3), Float32]
    vertices: Array[(4, 3), Float64]
    quads: Array[(1, 4), Int64]


def apply(inputs: InputSchema) -> OutputSchema:
    product = float(np.prod(list(inputs.factors.values())))
    rows = np.arange(inputs.rows, dtype=float)
    return OutputSchema(
        y=inputs.x.sum() * product * inputs.layer.thickness + inputs.offset,
        tall=np.stack([rows, -rows], 1),
        long=rows,
        warm=np.array([[300.0, 300.05], [300.1, 300.2]]),
        vertices=[[0, 0, 0], [4, 0, 0], [1, 1, 0], [0, 4, 0]],  # a dart: the third corner is in
        quads=[[0, 1, 2, 3]],
        nearly=np.arange(12.0).reshape(3, 2, 2),
        colours=np.stack(np.broadcast_arrays(*np.ix_(*2 * [np.arange(4) / 3]), 0.2), 2)[
            :, :, [1, 0, 2]
        ],
    )


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    product = float(np.prod(list(inputs.factors.values())))
    weight = cotangent_vector["y"] * product
    found = dict.fromkeys(vjp_inputs, np.zeros(()))
    if "x" in found:
        found["x"] = weight * inputs.layer.thickness * np.ones_like(inputs.x)
    if "layer.thickness" in found:
        found["layer.thickness"] = weight * inputs.x.sum()
    return found

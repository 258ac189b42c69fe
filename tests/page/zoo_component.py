"""Fields and arrays that are <i>rarely</i> met, on a page."""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import (
    Array,
    BFloat16,
    Bool,
    Complex128,
    Differentiable,
    Float16,
    Float64,
    Int64,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: Differentiable[Float64] = 1.0
    y: Differentiable[Array[(2,), Float64]] = [1.0, 2.0]


class InputSchema(BaseModel):
    points: list[Point] = [Point()]
    named: dict[str, Point] = {"a": Point()}
    pair: tuple[int, str] = (1, "b")
    colour: Colour = Colour.RED
    either: int | str = 3
    absent: Array[(None,), Float64] | None = None
    flags: Array[(3,), Bool] = [True, False, True]
    signal: Array[(None,), Complex128]
    anything: Array[..., Float64] = [[1.0, 2.0]]
    share: float = Field(gt=0, lt=1)
    cube: Array[(None, None, None), Float64]
    count: int = 2**53 + 1
    identifiers: Array[(None,), Int64] = [-(2**62) - 1, 0]


class OutputSchema(BaseModel):
    doubled: Array[(None,), Complex128]
    half: Array[(None,), Float16]
    brain: Array[(None,), BFloat16]
    hyper: Array[(2, 3, 4, 5), Float64]
    flags: Array[(3,), Bool]
    gaps: Array[(None,), Float64]
    empty: Array[(None,), Float64]
    large: Array[(None,), Int64]
    seen: Array[(None,), Float64]
    counted: int
    shifted: Array[(None,), Int64]
    nothing: float | None
    said: str
    total: Differentiable[Float64]


def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(
        doubled=2 * inputs.signal,
        half=np.arange(20, dtype=np.float16) / 4,
        brain=np.arange(20).astype(ml_dtypes.bfloat16),
        hyper=np.arange(120.0).reshape(2, 3, 4, 5),
        flags=~inputs.flags,
        gaps=np.array([1.0, np.nan, np.inf] * 10),
        empty=np.zeros(0),
        large=np.arange(20) * 2**40,
        seen=inputs.anything.reshape(-1),
        counted=inputs.count + 1,
        shifted=inputs.identifiers + 1,
        nothing=None,
        said=f"{inputs.colour.value} {inputs.either!r} {inputs.pair} {inputs.cube.shape}",
        total=sum(point.x * point.y.sum() for point in inputs.points),
    )


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    gradients = {path: np.zeros(2 if path.endswith("y") else ()) for path in vjp_inputs}
    for i, point in enumerate(inputs.points):
        gradients[f"points.[{i}].x"] = cotangent_vector["total"] * point.y.sum()
        gradients[f"points.[{i}].y"] = cotangent_vector["total"] * point.x * np.ones(2)
    return {path: gradients[path] for path in vjp_inputs}

"""A component of NumPy alone that hands residuals on; every forward pass leaves a line in a file."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64, WithResiduals

batching = None


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    trace: str


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]


def apply(inputs: InputSchema) -> WithResiduals:
    with open(inputs.trace, "a") as file:
        file.write("forward\n")
    slope = np.cos(inputs.x)
    return WithResiduals(OutputSchema(y=np.sin(inputs.x)), residuals={"slope": slope})


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
    return {"x": residuals["slope"] * cotangent_vector["y"]}


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector, residuals):
    return {"y": residuals["slope"] * tangent_vector["x"]}

"""A component of long vectors that spoils its inputs after use, and hands residuals on."""

import os

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64, Int64, WithResiduals


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    scale: Differentiable[Float64] = 1.0


class OutputSchema(BaseModel):
    y: Differentiable[Float64]
    pid: Int64


def apply(inputs: InputSchema) -> WithResiduals:
    cubes = float((inputs.x**3).sum())
    outputs = OutputSchema(y=inputs.scale * cubes, pid=os.getpid())
    inputs.x[:] = np.nan
    return WithResiduals(outputs, residuals={"cubes": cubes})


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
    gradient = {"x": 3 * inputs.scale * inputs.x**2, "scale": np.float64(residuals["cubes"])}
    inputs.x[:] = np.nan
    return {name: gradient[name] * cotangent_vector["y"] for name in vjp_inputs}


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 3 * inputs.scale * (inputs.x**2 @ tangent_vector["x"])}

"""A nested component for the tests of UM-Bridge: a list of parts, an option, an open size."""

import time
from typing import Literal

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64


class Part(BaseModel):
    mass: Differentiable[Float64]
    length: Differentiable[Array[(2,), Float64]]


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    part: Part
    mode: Literal["square", "cube", "nan", "fail", "hang"] = "square"


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]
    energy: Differentiable[Float64]


def _power(inputs):
    return 3 if inputs.mode == "cube" else 2


def apply(inputs):
    if inputs.mode == "fail":
        raise ArithmeticError("no convergence")
    while inputs.mode == "hang":
        time.sleep(0.01)
    y = inputs.part.mass * inputs.x ** _power(inputs)
    if inputs.mode == "nan":
        y = y * np.nan
    return {"y": y, "energy": inputs.part.mass * np.sum(inputs.part.length**2)}


def _partials(inputs):
    power, m = _power(inputs), inputs.part.mass
    n = inputs.x.size
    return {
        "y": {
            "x": np.diag(m * power * inputs.x ** (power - 1)),
            "part.mass": inputs.x**power,
            "part.length": np.zeros((n, 2)),
        },
        "energy": {
            "x": np.zeros(n),
            "part.mass": np.sum(inputs.part.length**2),
            "part.length": 2 * m * inputs.part.length,
        },
    }


def jacobian(inputs, jac_inputs, jac_outputs):
    found = _partials(inputs)
    return {o: {i: found[o][i] for i in jac_inputs} for o in jac_outputs}


def hessian_vector_product(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
    """By hand for the energy only: ∂²/∂(m, l)."""
    u = cotangent_vector.get("energy", 0.0)
    m, length = inputs.part.mass, inputs.part.length
    dm = tangent_vector.get("part.mass", 0.0)
    dl = np.asarray(tangent_vector.get("part.length", np.zeros(2)))
    all_ = {
        "part.mass": u * 2 * np.sum(length * dl),
        "part.length": u * (2 * length * dm + 2 * m * dl),
        "x": np.zeros_like(inputs.x),
    }
    return {path: all_[path] for path in hvp_inputs}

"""A small component with every endpoint, and ways to misbehave on request."""

import os
import time

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64

OwnError = type("KeyError", (RuntimeError,), {"__module__": __name__})  # has a builtin's name


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    scale: Differentiable[Float64] = 2.0
    action: str = ""


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]
    total: Differentiable[Float64]
    note: str = ""


def apply(inputs: InputSchema) -> OutputSchema:
    if inputs.action == "raise":
        raise ValueError("mesh is empty")
    if inputs.action == "exit":
        os._exit(3)
    if inputs.action == "raise_own":
        raise OwnError("mine")
    if inputs.action == "mask":
        return {"y": np.ma.masked_less(inputs.x, 2.0), "total": 0.0}
    if inputs.action.startswith("until "):
        while not os.path.exists(inputs.action.removeprefix("until ")):
            time.sleep(0.01)
    if inputs.action.startswith("sleep"):
        time.sleep(float(inputs.action.removeprefix("sleep")))
    note = str(os.getpid()) if inputs.action == "pid" else inputs.action
    if inputs.action == "tunables":
        note = os.environ["GLIBC_TUNABLES"]
    return OutputSchema(y=inputs.scale * inputs.x**2, total=inputs.x.sum(), note=note)


def jacobian(inputs, jac_inputs, jac_outputs):
    x, scale = inputs.x, inputs.scale
    blocks = {
        "y": {"x": np.diag(2 * scale * x), "scale": x**2},
        "total": {"x": np.ones(x.size), "scale": np.zeros(())},
    }
    return {path: {other: blocks[path][other] for other in jac_inputs} for path in jac_outputs}


def hessian_vector_product(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
    x, scale = inputs.x, inputs.scale
    weights = cotangent_vector.get("y", np.zeros_like(x))
    along_x = tangent_vector.get("x", np.zeros_like(x))
    products = {
        "x": 2 * weights * (scale * along_x + x * tangent_vector.get("scale", 0.0)),
        "scale": np.sum(2 * weights * x * along_x),
    }
    return {path: products[path] for path in hvp_inputs}


def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x, "total": {"shape": (), "dtype": "float64"}, "note": ""}

"""Heat in a rod."""

import os
import time
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Differentiable, Float64, progress


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64, "m"]] = Field(description="positions", ge=0)
    scale: Differentiable[Float64] = 2.0
    mode: Literal["plain", "nan", "fail", "crash", "progress", "hang", "large", "rude"] = "plain"


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]


def apply(inputs):
    print("a stray line")  # noqa: T201
    if inputs.mode == "rude":
        print("\x1b[2J")  # noqa: T201
    if inputs.mode == "nan":
        return {"y": inputs.x * np.nan}
    if inputs.mode == "fail":
        raise ArithmeticError("no convergence")
    if inputs.mode == "crash":
        os._exit(3)
    if inputs.mode == "progress":
        for k in range(3):
            progress(k / 3, f"step {k}")
            time.sleep(0.1)  # reports that follow each other faster are dropped
    if inputs.mode == "hang":
        progress(0.5, "hanging")
        time.sleep(600)
    if inputs.mode == "large":
        return {"y": np.arange(50.0)}
    return {"y": inputs.scale * inputs.x**2}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    u = cotangent_vector["y"]
    both = {"x": 2 * inputs.scale * inputs.x * u, "scale": np.sum(inputs.x**2 * u)}
    return {path: both[path] for path in vjp_inputs}

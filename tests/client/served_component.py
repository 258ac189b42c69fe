"""Squares, with a product of the author's; made to crash, to fail and to be counted."""

import os
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64, Int64


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    mode: str = ""
    note_in: str = ""


class OutputSchema(BaseModel):
    y: Differentiable[Float64]
    pid: Int64


def apply(inputs):
    if inputs.note_in:
        with Path(inputs.note_in).open("a") as notes:
            notes.write(f"{os.getpid()}\n")
    if inputs.mode == "crash":
        os._exit(1)
    if inputs.mode.startswith("until "):
        while not Path(inputs.mode.removeprefix("until ")).exists():
            time.sleep(0.005)
    return OutputSchema(y=np.sum(inputs.x**2), pid=os.getpid())


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.x * cotangent_vector["y"]}

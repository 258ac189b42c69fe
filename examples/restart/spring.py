"""A chain of springs under load: how far its end moves, and what its springs weigh.

With the variable EVALUATIONS, each evaluation leaves a line in that file.
"""

import os

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64

LOADS = np.array([3.0, 2.0, 1.0])


class InputSchema(BaseModel):
    stiffness: Differentiable[Array[(3,), Float64]]


class OutputSchema(BaseModel):
    cost: Differentiable[Float64]


def apply(inputs: InputSchema) -> OutputSchema:
    leave_a_line("apply", inputs.stiffness)
    return OutputSchema(
        cost=np.sum(LOADS**2 / inputs.stiffness) + np.sum(inputs.stiffness)
    )


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    leave_a_line("gradient", inputs.stiffness)
    slope = 1 - LOADS**2 / inputs.stiffness**2
    return {"stiffness": cotangent_vector["cost"] * slope}


def leave_a_line(endpoint, stiffness):
    if "EVALUATIONS" in os.environ:
        with open(os.environ["EVALUATIONS"], "a") as file:
            file.write(f"{endpoint} {stiffness.tolist()}\n")

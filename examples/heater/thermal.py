"""Temperatures of a plate that air and two holders cool."""

import network
import numpy as np
import scipy.sparse as sp
from pydantic import BaseModel, Field
from scipy.sparse.linalg import splu

from chainrule.runtime import Array, Differentiable, Float64

Plate = Array[("rows", "columns"), Float64]
ACROSS = (
    0.004  # W/K between the opposite sides of a square of mean thickness
)
TO_AIR = 0.006  # W/K, of the whole plate
TO_HOLDER = 0.003  # W/K, of each of the two: the left end, and a screw


class InputSchema(BaseModel):
    """The plate, and the power in each of its cells."""

    thickness: Differentiable[Plate] = Field(
        description="Of each cell, relative to the mean"
    )
    heat: Differentiable[Plate] = Field(
        description="Power per cell, in watts"
    )


class OutputSchema(BaseModel):
    """How hot it is."""

    temperature: Differentiable[Plate] = Field(
        description="Above that of the room, in kelvin"
    )


def _solved(inputs):
    """Differences over faces, means, and factors of DᵀgD + losses."""
    shape = inputs.thickness.shape
    d_matrix = network.faces(*shape)
    means = network.means(d_matrix)
    losses = np.full(shape, TO_AIR / (shape[0] * shape[1]))
    losses[:, 0] += TO_HOLDER / shape[0]
    screw = losses[
        2 * shape[0] // 3 :, 5 * shape[1] // 8 : 3 * shape[1] // 4
    ]
    screw += TO_HOLDER / screw.size
    g = ACROSS * (means @ inputs.thickness.ravel())
    return (
        d_matrix,
        means,
        splu(
            (
                d_matrix.T @ sp.diags(g) @ d_matrix
                + sp.diags(losses.ravel())
            ).tocsc()
        ),
    )


def apply(inputs: InputSchema) -> OutputSchema:
    *_, solver = _solved(inputs)
    return OutputSchema(
        temperature=solver.solve(inputs.heat.ravel()).reshape(
            inputs.heat.shape
        )
    )


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    """With A T = q and A λ = w: λ for the power, -(Dλ)(DT) for a face."""
    d_matrix, means, solver = _solved(inputs)
    shape = inputs.thickness.shape
    adjoint = solver.solve(cotangent_vector["temperature"].ravel())
    of_g = -(d_matrix @ adjoint) * (
        d_matrix @ solver.solve(inputs.heat.ravel())
    )
    answers = {
        "heat": adjoint.reshape(shape),
        "thickness": ACROSS * (means.T @ of_g).reshape(shape),
    }
    return {path: answers[path] for path in vjp_inputs}

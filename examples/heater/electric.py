"""Heat of a current through a plate that conducts less when hot."""

import network
import scipy.sparse as sp
from pydantic import BaseModel, Field
from scipy.sparse.linalg import splu

from chainrule.runtime import Array, Differentiable, Float64

Plate = Array[("rows", "columns"), Float64]
PER_KELVIN = 0.004  # how much the resistance grows, as that of most metals


class InputSchema(BaseModel):
    """The plate, between an electrode at its left and one at its right."""

    thickness: Differentiable[Plate] = Field(
        description="Of each cell, relative to the mean"
    )
    temperature: Differentiable[Plate] = Field(
        description="Above that of the room, in kelvin"
    )
    voltage: Float64 = 1.0


class OutputSchema(BaseModel):
    """Where the power goes."""

    heat: Differentiable[Plate] = Field(
        description="Power per cell, in watts"
    )


class _Solved:
    """Currents g d over the faces, d = Dφ + e, with Dᵀ (g d) = 0."""

    def __init__(self, inputs):
        self.d_matrix, added = network.electrodes(
            *inputs.thickness.shape, inputs.voltage
        )
        self.means = network.means(self.d_matrix)
        self.conductivity = 1 / (1 + PER_KELVIN * inputs.temperature)
        self.g = self.means @ (inputs.thickness * self.conductivity).ravel()
        self.solver = splu(
            (self.d_matrix.T @ sp.diags(self.g) @ self.d_matrix).tocsc()
        )
        self.d = added + self.d_matrix @ self.solver.solve(
            -self.d_matrix.T @ (self.g * added)
        )


def apply(inputs: InputSchema) -> OutputSchema:
    plate = _Solved(inputs)
    heat = plate.means.T @ (plate.g * plate.d**2)
    return OutputSchema(heat=heat.reshape(inputs.thickness.shape))


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    """The cotangent of the conductance g.

    The power g d² has the cotangent w. By g it gives w d², and by d, with
    A λ = Dᵀ (2 w g d), -d Dλ.
    """
    plate = _Solved(inputs)
    w = plate.means @ cotangent_vector["heat"].ravel()
    adjoint = plate.solver.solve(
        plate.d_matrix.T @ (2 * w * plate.g * plate.d)
    )
    of_g = w * plate.d**2 - plate.d * (plate.d_matrix @ adjoint)
    of_cells = (plate.means.T @ of_g).reshape(inputs.thickness.shape)
    answers = {
        "thickness": of_cells * plate.conductivity,
        "temperature": -PER_KELVIN
        * of_cells
        * inputs.thickness
        * plate.conductivity**2,
    }
    return {path: answers[path] for path in vjp_inputs}

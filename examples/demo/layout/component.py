"""Copper patches on a board: from their position, width and thickness to a conductivity field.

Every patch i adds a bell to the bare board's conductivity,

    k(r) = K0 + Σᵢ aᵢ exp(−|r − cᵢ|² / 2wᵢ²),

so that the partial derivatives are one line each, written by hand.
"""

import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Differentiable, Float64

BARE_BOARD = 0.3  # W/(m·K): glass fibre and epoxy
UNDER_THE_CHIPS = [[x, y] for x in (0.25, 0.5, 0.75) for y in (0.25, 0.5, 0.75)]

framework = "numpy"


class InputSchema(BaseModel):
    centres: Differentiable[Array[("patch", 2), Float64, "m"]] = Field(
        UNDER_THE_CHIPS, description="Position of every patch on a board of 1 m × 1 m"
    )
    widths: Differentiable[Array[("patch",), Float64, "m"]] = Field(
        [0.1] * 9, description="Width of every patch"
    )
    amounts: Differentiable[Array[("patch",), Float64, "W/(m*K)"]] = Field(
        [4.9] * 9, description="Conductivity that a patch adds at its centre"
    )
    resolution: int = Field(default=32, ge=4, le=512, description="Cells along an edge")


class OutputSchema(BaseModel):
    conductivity: Differentiable[Array[("cell", "cell"), Float64, "W/(m*K)"]] = Field(
        description="Of the board with its copper"
    )
    copper: Differentiable[Array[(), Float64, "W/(m*K)"]] = Field(
        description="Conductivity added, averaged over the board"
    )


def _bells(inputs):
    """The bell of every patch on the grid, and the offsets from its centre."""
    middles = (np.arange(inputs.resolution) + 0.5) / inputs.resolution
    x = middles[None, :, None] - inputs.centres[:, 0, None, None]
    y = middles[None, None, :] - inputs.centres[:, 1, None, None]
    width = inputs.widths[:, None, None]
    return np.exp(-(x**2 + y**2) / (2 * width**2)), x, y


def apply(inputs: InputSchema) -> OutputSchema:
    bells, _, _ = _bells(inputs)
    added = np.einsum("p,pxy->xy", inputs.amounts, bells)
    return OutputSchema(conductivity=BARE_BOARD + added, copper=added.mean())


def _partials(inputs):
    """∂k/∂(each input), with the patch axis first."""
    bells, x, y = _bells(inputs)
    scaled = inputs.amounts[:, None, None] * bells
    width = inputs.widths[:, None, None]
    return {
        "centres": np.stack([scaled * x / width**2, scaled * y / width**2], axis=1),
        "widths": scaled * (x**2 + y**2) / width**3,
        "amounts": bells,
    }


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    partials = _partials(inputs)
    change = sum(
        np.tensordot(tangent_vector[path], partials[path], axes=tangent_vector[path].ndim)
        for path in jvp_inputs
    )
    tangents = {"conductivity": change, "copper": change.mean()}
    return {path: tangents[path] for path in jvp_outputs}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    cells = inputs.resolution**2
    pull = np.zeros((inputs.resolution, inputs.resolution))
    if "conductivity" in vjp_outputs:
        pull += cotangent_vector["conductivity"]
    if "copper" in vjp_outputs:
        pull += cotangent_vector["copper"] / cells
    partials = _partials(inputs)
    return {path: np.tensordot(partials[path], pull, axes=2) for path in vjp_inputs}


def abstract_eval(abstract_inputs):
    cells = abstract_inputs.resolution
    return {
        "conductivity": {"shape": (cells, cells), "dtype": "float64"},
        "copper": {"shape": (), "dtype": "float64"},
    }

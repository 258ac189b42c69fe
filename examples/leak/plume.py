"""What sensors read downwind of a leak: advection and diffusion."""

from functools import lru_cache

import numpy as np
import scipy.sparse as sp
from pydantic import BaseModel, Field
from scipy.sparse.linalg import splu

from chainrule.runtime import Array, Differentiable, Float64

WIDTH, HEIGHT = 3.0, 2.0  # of the field, in kilometres
WIND = 1.0  # km/h, from left to right
SOURCE_SIZE = 0.08


class InputSchema(BaseModel):
    """Where it leaks, how much, and how the air mixes."""

    position: Differentiable[Array[(2,), Float64]] = Field(
        description="Of the leak, in km"
    )
    rate: Differentiable[Float64] = Field(
        gt=0, description="Mass per hour, in kg"
    )
    mixing: Differentiable[Float64] = Field(
        gt=0, description="Diffusivity, in km²/h"
    )
    sensors: Array[("k", 2), Float64] = Field(
        description="Their positions, in km"
    )
    columns: int = Field(
        60, ge=8, le=400, description="Cells along the wind"
    )


class OutputSchema(BaseModel):
    """What is measured."""

    readings: Differentiable[Array[("k",), Float64]] = Field(
        description="In kg/km²"
    )


@lru_cache(maxsize=4)
def grid(columns):
    """Centres of the cells, and the matrices of wind and of mixing."""
    rows = 2 * columns // 3
    h = WIDTH / columns
    x = (np.arange(columns) + 0.5) * h
    y = (np.arange(rows) + 0.5) * h
    along = (
        sp.diags([-1.0, 1.0], [-1, 0], shape=(columns, columns)) / h
    )  # upwind

    def spread(n):
        edge = np.ones(n - 1)
        inner = np.r_[
            1.0, np.full(n - 2, 2.0), 1.0
        ]  # nothing passes the walls
        return sp.diags([-edge, inner, -edge], [-1, 0, 1]) / h**2

    wind = WIND * sp.kron(along, sp.identity(rows))
    mixing = sp.kron(spread(columns), sp.identity(rows)) + sp.kron(
        sp.identity(columns), spread(rows)
    )
    return (
        np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2),
        wind,
        mixing,
    )


@lru_cache(maxsize=4)
def factors(columns, mixing):
    _, wind, spread = grid(columns)
    return splu((wind + mixing * spread).tocsc())


def cloud(inputs):
    """How the leak is spread over the cells, for a rate of one."""
    centres, _, _ = grid(inputs.columns)
    distance = np.sum((centres - inputs.position) ** 2, axis=1)
    return np.exp(-distance / (2 * SOURCE_SIZE**2)) / (
        2 * np.pi * SOURCE_SIZE**2
    )


def reading(inputs):
    """The sparse matrix from the field to the sensors (bilinear)."""
    columns, rows = inputs.columns, 2 * inputs.columns // 3
    place = np.clip(
        inputs.sensors * columns / WIDTH - 0.5,
        0,
        [columns - 1.001, rows - 1.001],
    )
    low, part = place.astype(int), place % 1
    matrix = sp.lil_matrix((len(place), columns * rows))
    for dx in (0, 1):
        for dy in (0, 1):
            weight = np.prod(np.where([dx, dy], part, 1 - part), axis=1)
            matrix[
                np.arange(len(place)),
                (low[:, 0] + dx) * rows + low[:, 1] + dy,
            ] = weight
    return matrix.tocsr()


def field(inputs):
    """The concentration in every cell."""
    return factors(inputs.columns, float(inputs.mixing)).solve(
        inputs.rate * cloud(inputs)
    )


def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(readings=reading(inputs) @ field(inputs))


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    """With A c = rate · q and readings = S c, one solve with Aᵀ."""
    centres, _, spread = grid(inputs.columns)
    source = cloud(inputs)
    solver = factors(inputs.columns, float(inputs.mixing))
    adjoint = solver.solve(
        reading(inputs).T @ cotangent_vector["readings"], trans="T"
    )
    away = (centres - inputs.position) / SOURCE_SIZE**2
    answers = {
        "position": lambda: inputs.rate * (adjoint * source) @ away,
        "rate": lambda: adjoint @ source,
        "mixing": lambda: (
            -adjoint @ (spread @ solver.solve(inputs.rate * source))
        ),
    }
    return {path: answers[path]() for path in vjp_inputs}

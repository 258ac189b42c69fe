"""Steady heat conduction in a thin board: −∇·(k∇T) = q / thickness, with the rim held at ambient temperature.

Finite volumes on a square grid. The flux between two cells uses the harmonic mean of their
conductivities; the rim is half a cell away. One sparse factorisation gives the temperature, and the same
factorisation gives both derivatives: with A(k) T = b,

    Ṫ = A⁻¹ (ḃ − Ȧ T),        k̄ = −(∂A/∂k · T)ᵀ λ   with   A λ = T̄   (A is symmetric).
"""

import numpy as np
from pydantic import BaseModel, Field
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu

from chainrule.runtime import Array, Differentiable, Float64

CHIPS = np.array([[x, y] for x in (0.25, 0.5, 0.75) for y in (0.25, 0.5, 0.75)])
POWERS = np.array([2.0, 6.0, 2.0, 1.0, 9.0, 4.0, 3.0, 1.0, 5.0])  # W
CHIP_SIZE = 0.06  # m
THICKNESS = 0.025  # m
AMBIENT = 300.0  # K

framework = "numpy"


class InputSchema(BaseModel):
    conductivity: Differentiable[Array[("cell", "cell"), Float64, "W/(m*K)"]] = Field(
        description="Conductivity of every cell"
    )


class OutputSchema(BaseModel):
    temperature: Differentiable[Array[("cell", "cell"), Float64, "K"]] = Field(
        description="Of every cell"
    )
    chips: Differentiable[Array[(9,), Float64, "K"]] = Field(
        description="Mean temperature of every chip"
    )


def _footprints(cells):
    """Which share of every cell's heat and temperature belongs to which chip: one row a chip."""
    middles = (np.arange(cells) + 0.5) / cells
    x = np.abs(middles[None, :, None] - CHIPS[:, 0, None, None]) <= CHIP_SIZE
    y = np.abs(middles[None, None, :] - CHIPS[:, 1, None, None]) <= CHIP_SIZE
    weights = (x & y).reshape(len(CHIPS), -1).astype(float)
    return weights / weights.sum(axis=1, keepdims=True)


def _faces(cells):
    """The pairs of neighbouring cells, and the cells at the rim (once per open side)."""
    index = np.arange(cells * cells).reshape(cells, cells)
    first = np.concatenate([index[:-1].ravel(), index[:, :-1].ravel()])
    second = np.concatenate([index[1:].ravel(), index[:, 1:].ravel()])
    rim = np.concatenate([index[0], index[-1], index[:, 0], index[:, -1]])
    return first, second, rim


class _Board:
    """The discrete problem for one conductivity, factorised once."""

    def __init__(self, conductivity):
        self.cells = conductivity.shape[0]
        self.k = conductivity.ravel()
        self.first, self.second, self.rim = _faces(self.cells)
        k1, k2 = self.k[self.first], self.k[self.second]
        self.conductance = 2 * k1 * k2 / (k1 + k2)
        # ∂(harmonic mean)/∂k of either side
        self.slope_first = 2 * k2**2 / (k1 + k2) ** 2
        self.slope_second = 2 * k1**2 / (k1 + k2) ** 2
        self.solve = splu(self._matrix()).solve
        self.footprints = _footprints(self.cells)
        self.rise = self.solve(POWERS / THICKNESS @ self.footprints)

    def _matrix(self):
        rows = np.concatenate([self.first, self.second, self.first, self.second, self.rim])
        columns = np.concatenate([self.first, self.second, self.second, self.first, self.rim])
        g, to_rim = self.conductance, 2 * self.k[self.rim]
        values = np.concatenate([g, g, -g, -g, to_rim])
        return csc_matrix((values, (rows, columns)), shape=(self.k.size, self.k.size))

    def outputs(self, field):
        return {
            "temperature": field.reshape(self.cells, self.cells),
            "chips": self.footprints @ field,
        }

    def push(self, k_dot):
        """Ṫ for a change of conductivity."""
        flow = self.slope_first * k_dot[self.first] + self.slope_second * k_dot[self.second]
        across = flow * (self.rise[self.first] - self.rise[self.second])
        change = np.zeros_like(self.rise)
        np.add.at(change, self.first, across)
        np.add.at(change, self.second, -across)
        np.add.at(change, self.rim, 2 * k_dot[self.rim] * self.rise[self.rim])
        return self.solve(-change)

    def pull(self, t_bar):
        """k̄ for a cotangent of the temperature."""
        adjoint = self.solve(t_bar)
        across = (self.rise[self.first] - self.rise[self.second]) * (
            adjoint[self.first] - adjoint[self.second]
        )
        k_bar = np.zeros_like(self.k)
        np.add.at(k_bar, self.first, -self.slope_first * across)
        np.add.at(k_bar, self.second, -self.slope_second * across)
        np.add.at(k_bar, self.rim, -2 * self.rise[self.rim] * adjoint[self.rim])
        return k_bar


def apply(inputs: InputSchema) -> OutputSchema:
    board = _Board(inputs.conductivity)
    return OutputSchema(**board.outputs(AMBIENT + board.rise))


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    board = _Board(inputs.conductivity)
    tangents = board.outputs(board.push(tangent_vector["conductivity"].ravel()))
    return {path: tangents[path] for path in jvp_outputs}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    board = _Board(inputs.conductivity)
    t_bar = np.zeros_like(board.rise)
    if "temperature" in vjp_outputs:
        t_bar += cotangent_vector["temperature"].ravel()
    if "chips" in vjp_outputs:
        t_bar += cotangent_vector["chips"] @ board.footprints
    return {"conductivity": board.pull(t_bar).reshape(board.cells, board.cells)}


def abstract_eval(abstract_inputs):
    shape = abstract_inputs.conductivity.shape
    return {
        "temperature": {"shape": shape, "dtype": "float64"},
        "chips": {"shape": (9,), "dtype": "float64"},
    }

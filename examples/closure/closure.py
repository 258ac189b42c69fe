"""A convolutional network in torch: the stress below the grid."""

import torch
from pydantic import BaseModel
from torch.nn import functional

from chainrule import component
from chainrule.runtime import Array, Differentiable, Float64

Rows = Array[("flow", "x"), Float64]


class Weights(BaseModel):
    """Two convolutions: from differences of velocity to a viscosity."""

    first: Differentiable[Array[("channel", 2, 4), Float64]]
    bias: Differentiable[Array[("channel",), Float64]]
    second: Differentiable[Array[(1, "channel", 1), Float64]]


@component(framework="torch")
def stress(
    u: Differentiable[Rows], weights: Weights
) -> Differentiable[Rows]:
    """A viscosity from the four cells at a face, times the difference."""
    difference = torch.roll(u, -1, dims=-1) - u
    around = torch.stack([u - u.mean(-1, keepdim=True), difference], dim=1)
    hidden = functional.conv1d(
        functional.pad(around, (1, 2), mode="circular"),
        weights.first,
        weights.bias,
    )
    viscosity = functional.softplus(
        functional.conv1d(torch.tanh(hidden), weights.second)[:, 0] - 2
    )
    return viscosity * difference

"""y = sin(2x) + 1 by torch on a GPU: what `device_components` serves, and starts in a process of its own."""

import torch

import chainrule
from chainrule.runtime import Array, Differentiable, Float32

Vector = Differentiable[Array[("n",), Float32]]


@chainrule.component(framework="torch", device="cuda")
def sine(x: Vector) -> Vector:
    """The sine by torch."""
    return torch.sin(2 * x) + 1

"""The shape of a bracket, in JAX: two outlines and a mesh between them."""

from math import comb
from typing import Annotated

import jax.numpy as jnp
from pydantic import Field

from chainrule import component
from chainrule.runtime import Array, Differentiable, Float64

LENGTH = 2.0

Outer = Annotated[
    Differentiable[Array[("a",), Float64]],
    Field(
        ge=0.04,
        le=0.5,
        description="Half the height of the bracket, in metres",
    ),
]
Hole = Annotated[
    Differentiable[Array[("b",), Float64]],
    Field(
        ge=0.02,
        le=0.45,
        description="Half the height of its hole, in metres",
    ),
]
Points = Array[("n", 2), Float64]


def curve(values, s):
    """The Bézier curve with these control values, at s in [0, 1]."""
    n = values.size - 1
    return sum(
        comb(n, k) * s**k * (1 - s) ** (n - k) * values[k]
        for k in range(n + 1)
    )


@component(framework="jax")
def outline(
    outer: Outer, hole: Hole, lattice: Points
) -> Differentiable[Points]:
    """Where the points of the unit square are in the bracket."""
    s, t = lattice.T
    top, inner = curve(outer, s), curve(hole, s)
    # The middle third of the square is stretched over the hole,
    # the others over the two legs.
    height = 2 * t - 1
    leg = inner + (jnp.abs(height) - 1 / 3) * 1.5 * (top - inner)
    y = jnp.where(
        jnp.abs(height) < 1 / 3, 3 * height * inner, jnp.sign(height) * leg
    )
    return jnp.stack([LENGTH * s, y], axis=1)

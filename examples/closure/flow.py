"""One step of Burgers' equation on a periodic grid, with a stress.

    ∂u/∂t = -∂(u²/2)/∂x + ν ∂²u/∂x² + ∂τ/∂x    on 0 ≤ x < 2π

The stress τ stands for what the grid does not resolve. The scheme
conserves energy where ν and τ are zero; its derivative is written by hand.
"""

import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Differentiable, Float64

VISCOSITY = 0.02

Rows = Array[("flow", "x"), Float64]


class InputSchema(BaseModel):
    """Velocities of several flows, and the stress between cells."""

    u: Differentiable[Rows]
    stress: Differentiable[Rows] = Field(
        description="At the right face of each cell"
    )
    dt: Float64 = Field(gt=0, description="Length of the step")


class OutputSchema(BaseModel):
    """The velocities after the step."""

    u: Differentiable[Rows]


def right(a):
    return np.roll(a, -1, axis=-1)


def left(a):
    return np.roll(a, 1, axis=-1)


def rate(u, stress):
    """∂u/∂t."""
    dx = 2 * np.pi / u.shape[-1]
    flux = (
        stress
        + VISCOSITY * (right(u) - u) / dx
        - (u**2 + u * right(u) + right(u) ** 2) / 6
    )
    return (flux - left(flux)) / dx


def rate_vjp(u, w):
    """The cotangents of u and of the stress for the cotangent w of `rate`.

    Flux i enters rate i with +1/dx and rate i + 1 with -1/dx, so its
    cotangent is (wᵢ - wᵢ₊₁)/dx.
    """
    dx = 2 * np.pi / u.shape[-1]
    flux = (w - right(w)) / dx
    of_own = -VISCOSITY / dx - (2 * u + right(u)) / 6
    of_right = VISCOSITY / dx - (u + 2 * right(u)) / 6
    return flux * of_own + left(flux * of_right), flux


def apply(inputs: InputSchema) -> OutputSchema:
    first = rate(inputs.u, inputs.stress)
    second = rate(inputs.u + inputs.dt * first, inputs.stress)
    return OutputSchema(u=inputs.u + inputs.dt / 2 * (first + second))


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    u, dt, w = inputs.u, inputs.dt, cotangent_vector["u"]
    middle, stress_2 = rate_vjp(u + dt * rate(u, inputs.stress), dt / 2 * w)
    start, stress_1 = rate_vjp(u, dt / 2 * w + dt * middle)
    cotangents = {"u": w + middle + start, "stress": stress_1 + stress_2}
    return {path: cotangents[path] for path in vjp_inputs}

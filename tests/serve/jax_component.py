"""A JAX component that leaves a line for every forward pass; its author wants residuals kept."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp

from chainrule.runtime import Array, Differentiable, Float32, component
from chainrule.runtime.experimental import set_jax_vjp_cache_size

Vector = Differentiable[Array[("n",), Float32]]

set_jax_vjp_cache_size(8)


def note(x):
    with open(os.environ["FORWARD_TRACE"], "a") as file:
        file.write("forward\n")


@component(framework="jax")
def waves(x: Vector) -> Vector:
    jax.debug.callback(note, x)
    return jnp.sin(x) * jnp.exp(-(x**2))

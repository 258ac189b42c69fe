"""Graphs of a few vertices, by which books explain elimination."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

Array = Any


def simple(x: Array, y: Array) -> tuple[Array, Array]:
    """Griewank's smallest example in which no pure mode is cheapest by structure alone."""
    z = x * y
    w = jnp.sin(z)
    return w + z, jnp.log(w)


def helmholtz(x: Array) -> Array:
    """The mixing part of a Helmholtz energy, x · log(x / (1 − Σx))."""
    return x * jnp.log(x / (1.0 + -jnp.sum(x)))


def lighthouse(nu: Array, gamma: Array, omega: Array, t: Array) -> tuple[Array, Array]:
    """Where the beam of a lighthouse meets a quay (Griewank); the tangent is written, and counted, twice."""
    y1 = nu * jnp.tan(omega * t) / (gamma - jnp.tan(omega * t))
    return y1, gamma * y1


def hole(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array]:
    """A graph with a hole in the middle (Griewank): two ways that part after b·c and meet in every output."""
    start = b * c
    left, right = jnp.sin(a * start), jnp.sin(start * d)
    return left * right, left + right, left / right

"""Components that say how they batch, and leave a line for every evaluation."""

from __future__ import annotations

import os

import numpy as np

from chainrule.runtime import Array, Differentiable, Float64, component

Rows = Array[("n", 2), Float64]
Anything = Array[..., Float64]
Point = Array[(2,), Float64]


def note(trace: str, x: np.ndarray) -> None:
    with open(trace, "a") as file:
        file.write(f"{x.shape}\n")


@component(batching="leading", merge_up_to=4)
def rows(x: Rows, factor: float, trace: str) -> Rows:
    note(trace, x)
    if (x < 0).any():
        raise ValueError("negative")
    if (x > 1e6).any():
        os._exit(3)
    return factor * x


@component(batching="elementwise")
def anything(x: Anything, trace: str) -> Anything:
    note(trace, x)
    return x**2


@component(batching="elementwise", merge_up_to=4)
def point(x: Point, trace: str) -> Point:
    """Says that it batches, but its schema does not let it."""
    note(trace, x)
    return x**2


Cases = Differentiable[Array[("n", 2), Float64]]


@component(batching="leading", merge_up_to=4)
def cases(x: Cases, trace: str) -> Cases:
    note(trace, x)
    return x**2

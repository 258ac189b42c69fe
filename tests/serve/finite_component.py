"""A component without derivatives of its own; the tests follow its finite-difference Jacobian."""

from __future__ import annotations

import time

from chainrule.runtime import Array, Differentiable, Float64, component, progress

Vector = Differentiable[Array[("n",), Float64]]


@component(derivatives="finite")
def squares(x: Vector) -> Vector:
    progress(1.0, "evaluated")
    time.sleep(0.01)
    return x**2

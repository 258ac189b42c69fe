"""The benchmark functions of the literature on elimination orders, and points to evaluate them at.

They are written one operation per line of mathematics, with repeated subexpressions left repeated, because
counts of operations are compared with published ones. `TASKS` lists them by name.

How operations are grouped decides the counts. Where the groupings come from:

- RoeFlux_1d and the robot arm: the description of the tasks.
- Heart dipole and propane: MINPACK-2's equations, with graphax's choice of what is computed once
  (graphax, `examples/minpack.py`). The lighthouse with its tangent written twice, and the edges of the hole:
  `easy.py`.
- RoeFlux_3d: the description; that the slices are `0:1`, `1:2`, `2:` and the inner product a dot product was
  read off graphax's `examples/roe.py`.
- Perceptron and encoder: read off `examples/deep_learning.py`: scalar scale and shift, means over the last
  axis without keeping it, the maximum in the softmax (stopped, with −∞ as initial value), one loss per row,
  b1 a row and b2 a column.
- Black–Scholes: read off `examples/economics.py` that (1 + erf)/2 and σ²/2·T are quotients and that the
  Jacobian is graphax's own reverse accumulation, and off `primitives.py` which formulas it writes for
  partials.
"""

from __future__ import annotations

from chainrule.elimination.examples._fluxes import roe_flux_1d, roe_flux_3d
from chainrule.elimination.examples._greeks import black_scholes, black_scholes_jacobian
from chainrule.elimination.examples._mechanics import (
    human_heart_dipole,
    propane_combustion,
    robot_arm_6dof,
)
from chainrule.elimination.examples._networks import encoder, perceptron
from chainrule.elimination.examples._small import helmholtz, hole, lighthouse, simple
from chainrule.elimination.examples._tasks import TASKS, Task

__all__ = [
    "TASKS",
    "Task",
    "black_scholes",
    "black_scholes_jacobian",
    "encoder",
    "helmholtz",
    "hole",
    "human_heart_dipole",
    "lighthouse",
    "perceptron",
    "propane_combustion",
    "robot_arm_6dof",
    "roe_flux_1d",
    "roe_flux_3d",
    "simple",
]

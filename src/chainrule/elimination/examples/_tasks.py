"""The tasks that orders are compared on, with points to evaluate them at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from chainrule.elimination.examples._fluxes import roe_flux_1d, roe_flux_3d
from chainrule.elimination.examples._greeks import black_scholes_jacobian
from chainrule.elimination.examples._mechanics import (
    human_heart_dipole,
    propane_combustion,
    robot_arm_6dof,
)
from chainrule.elimination.examples._networks import encoder, perceptron

Array = Any


@dataclass(frozen=True)
class Task:
    """A benchmark function with a point to evaluate it at.

    Attributes:
        name: as in the literature.
        function: differentiated with respect to all arguments.
        arguments: makes the point, in float32.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[Array, ...]]


def _scalars(*values: float) -> Callable[[], tuple[Array, ...]]:
    return lambda: tuple(jnp.float32(value) for value in values)


def _weights(*shapes: tuple[int, ...]) -> Callable[[], tuple[Array, ...]]:
    """Reproducible small numbers."""
    return lambda: tuple(
        0.1
        + 0.05 * jnp.sin(1.7 * k + jnp.arange(math.prod(shape), dtype=jnp.float32)).reshape(shape)
        for k, shape in enumerate(shapes)
    )


def _roe_flux_3d_point() -> tuple[Array, ...]:
    rows = ([0.1], [0.1, 0.2, 0.3], [0.5], [0.2], [0.2, 0.2, 0.4], [0.6])
    return tuple(jnp.array([row], jnp.float32) for row in rows)


TASKS: tuple[Task, ...] = (
    Task("RoeFlux_1d", roe_flux_1d, _scalars(0.01, 0.02, 0.02, 0.01, 0.03, 0.03)),
    Task("RobotArm_6DOF", robot_arm_6dof, _scalars(*[0.02] * 6)),
    Task("HumanHeartDipole", human_heart_dipole, _scalars(*[0.15] * 8)),
    Task("PropaneCombustion", propane_combustion, _scalars(*[0.15] * 11)),
    Task("BlackScholes_Jacobian", black_scholes_jacobian, _scalars(*[1.0] * 5)),
    Task("RoeFlux_3d", jax.vmap(roe_flux_3d), _roe_flux_3d_point),
    Task(
        "Perceptron", perceptron,
        _weights((4,), (4,), (8, 4), (8,), (4, 8), (4,), (), ()),
    ),
    Task(
        "Encoder", encoder,
        _weights((4, 4), (2, 4), *[(4, 4)] * 7, (2, 4), (4,), (2, 1), (), (), (), ()),
    ),
)  # fmt: skip
"""The tasks of AlphaGrad's table."""

"""Kinematics, and two systems of equations from MINPACK-2."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

Array = Any


def robot_arm_6dof(
    t1: Array, t2: Array, t3: Array, t4: Array, t5: Array, t6: Array
) -> tuple[Array, ...]:
    """Forward kinematics of an arm with six joints: position and three angles of the hand."""
    a1, a2, a3 = 175.0, 890.0, 50.0
    d1, d4, d6 = 575.0, 1035.0, 185.0
    c1, s1 = jnp.cos(t1), jnp.sin(t1)
    c2, s2 = jnp.cos(t2), jnp.sin(t2)
    c4, s4 = jnp.cos(t4), jnp.sin(t4)
    c5, s5 = jnp.cos(t5), jnp.sin(t5)
    c6, s6 = jnp.cos(t6), jnp.sin(t6)
    c23 = jnp.cos(t2) * jnp.cos(t3) - jnp.sin(t2) * jnp.sin(t3)
    s23 = jnp.cos(t2) * jnp.sin(t3) + jnp.sin(t2) * jnp.cos(t3)
    ax = s5 * (c1 * c23 * c4 + s1 * s4) + c1 * s23 * c5
    ay = s5 * (s1 * c23 * c4 - c1 * s4) + s1 * s23 * c5
    az = s23 * c4 * s5 - c23 * c5
    nz = c6 * (c23 * s5 + s23 * c4 * c5) - s23 * s4 * s6
    oz = -s6 * (c23 * s5 + s23 * c4 * c5) - s23 * s4 * c6
    z = jnp.arctan2(ay, ax)
    y = jnp.arctan2(jnp.sqrt(1.0 - az**2), az)
    z_prime = jnp.arctan2(oz, -nz)
    px = d6 * (s5 * (c1 * c23 * c4 + s1 * s4) + c1 * s23 * c5) + c1 * (
        a1 + a2 * c2 + a3 * c23 + d4 * s23
    )
    py = d6 * (s5 * (s1 * c23 * c4 + c1 * s4) + s1 * s23 * c5) + s1 * (
        a1 + a2 * c2 + a3 * c23 + d4 * s23
    )
    pz = a2 * s2 + d1 + a3 * s23 - d4 * c23 + d6 * (s23 * c4 * s5 - c23 * c5)
    return px, py, pz, z, y, z_prime


def human_heart_dipole(
    x1: Array, x2: Array, x3: Array, x4: Array, x5: Array, x6: Array, x7: Array, x8: Array
) -> tuple[Array, ...]:
    """The human heart dipole problem of MINPACK-2."""
    f1 = x1 + x2
    f2 = x3 + x4
    f3 = x1 * x5 + x2 * x6 - x3 * x7 - x4 * x8
    f4 = x1 * x7 + x2 * x8 + x3 * x5 + x4 * x6
    difference_57, difference_68 = x5**2 - x7**2, x6**2 - x8**2
    cubic_57, cubic_75 = x5 * (x5**2 - 3.0 * x7**2), x7 * (x7**2 - 3.0 * x5**2)
    cubic_68, cubic_86 = x6 * (x6**2 - 3.0 * x8**2), x8 * (x8**2 - 3.0 * x6**2)
    f5 = x1 * difference_57 - 2.0 * x3 * x5 * x7 + x2 * difference_68 - 2.0 * x4 * x6 * x8
    f6 = x3 * difference_57 + 2.0 * x1 * x5 * x7 + x4 * difference_68 + 2.0 * x2 * x6 * x8
    f7 = x1 * cubic_57 + x3 * cubic_75 + x2 * cubic_68 + x4 * cubic_86
    f8 = x3 * cubic_57 - x1 * cubic_75 + x4 * cubic_68 - x2 * cubic_86
    sums = (0.485, -0.0019, -0.0581, 0.015, 0.105, 0.0406, 0.167, -0.399)
    return tuple(f - c for f, c in zip((f1, f2, f3, f4, f5, f6, f7, f8), sums, strict=True))


def propane_combustion(
    x1: Array, x2: Array, x3: Array, x4: Array, x5: Array, x6: Array, x7: Array, x8: Array,
    x9: Array, x10: Array, x11: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """The combustion of propane of MINPACK-2 in full, p = 40, R = 10, equilibrium constants 1."""
    p, R = 40.0, 10.0
    root = jnp.sqrt(p / x11)
    f1 = x1 + x4 - 3.0
    f2 = 2.0 * x1 + x2 + x4 + x7 + x8 + x9 + 2.0 * x10 - R
    f3 = 2.0 * x2 + 2.0 * x5 + x6 + x7 - 8.0
    f4 = 2.0 * x3 + x9 - 4.0 * R
    f5 = x2 * x4 - x1 * x5
    f6 = jnp.sqrt(x2 * x4) - jnp.sqrt(x1) * root * x6
    f7 = jnp.sqrt(x1 * x2) - jnp.sqrt(x4) * x7 * root
    f8 = x1 - x4 * x8 * p / x11
    f9 = x1 * jnp.sqrt(x3) - x4 * x9 * root
    f10 = x1**2 - x4**2 * x10 * p / x11
    f11 = x11 - x1 - x2 - x3 - x4 - x5 - x6 - x7 - x8 - x9 - x10
    return f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11

"""The benchmark functions of the literature on elimination orders, and points to evaluate them at.

They are written one operation per line of mathematics, with repeated subexpressions left repeated, because
counts of operations are compared with published ones. `TASKS` lists them by name.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = [
    "black_scholes",
    "helmholtz",
    "human_heart_dipole",
    "lighthouse",
    "propane_combustion",
    "robot_arm_6dof",
    "roe_flux_1d",
    "simple",
]

Array = Any


def simple(x: Array, y: Array) -> tuple[Array, Array]:
    """Griewank's smallest example in which no pure mode is cheapest by structure alone."""
    z = x * y
    w = jnp.sin(z)
    return w + z, jnp.log(w)


def lighthouse(nu: Array, gamma: Array, omega: Array, t: Array) -> tuple[Array, Array]:
    """Where a lighthouse's beam hits the quay y = γx (Griewank and Walther)."""
    y1 = nu * jnp.tan(omega * t)
    y2 = gamma * y1
    return y1 / (gamma - jnp.tan(omega * t)), y2 / (gamma - jnp.tan(omega * t))


def helmholtz(x: Array) -> Array:
    """The mixing part of a Helmholtz energy, x · log(x / (1 − Σx))."""
    return x * jnp.log(x / (1.0 + -jnp.sum(x)))


def _roe_flux_state(u0: Array, u1: Array, u2: Array, p: Array) -> tuple[Array, Array, Array]:
    v = u1 / u0
    return u1, p + u1 * v, v * (p + u2)


def roe_flux_1d(
    l0: Array, l1: Array, l2: Array, r0: Array, r1: Array, r2: Array
) -> tuple[Array, Array, Array]:
    """Roe's approximate Riemann solver for the one-dimensional Euler equations, γ = 0.5."""
    gamma = 0.5
    du = r0 - l0
    root = jnp.sqrt(l0 * r0)
    w = jnp.sqrt(l0) + jnp.sqrt(r0)
    vl = l1 / l0
    pl = (gamma - 1.0) * (l2 - 0.5 * l1**2 / l0)
    hl = (l2 + pl) / l0
    vr = r1 / r0
    pr = (gamma - 1.0) * (r2 - 0.5 * r1**2 / r0)
    hr = (r2 + pr) / r0
    dp = pr - pl
    dv = vr - vl
    u = (jnp.sqrt(l0) * vl + jnp.sqrt(r0) * vr) / w
    h = (jnp.sqrt(l0) * hl + jnp.sqrt(r0) * hr) / w
    q = u**2
    a2 = (gamma - 1.0) * (h - 0.5 * q)
    a = jnp.sqrt(a2)
    fast = jnp.abs(u + a)
    middle = jnp.abs(u)
    slow = jnp.abs(u)
    n = a * root
    c0 = (du - dp / a2) * middle
    c1 = (dv + dp / n) * fast
    c2 = (dv - dp / n) * slow
    fl = _roe_flux_state(l0, l1, l2, pl)
    fr = _roe_flux_state(r0, r1, r2, pr)
    f0, f1, f2 = fl[0] + fr[0], fl[1] + fr[1], fl[2] + fr[2]
    c = 0.5 * root / a
    d0 = c0 + c * c1 - c * c2
    d1 = c0 * u + c * c1 * (u + a) - c * c2 * (u - a)
    d2 = c0 * 0.5 * q + c * c1 * (h + u * a) - c * c2 * (h - u * a)
    return 0.5 * (f0 - d0), 0.5 * (f1 - d1), 0.5 * (f2 - d2)


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
    f5 = x1 * (x5**2 - x7**2) - 2.0 * x3 * x5 * x7 + x2 * (x6**2 - x8**2) - 2.0 * x4 * x6 * x8
    f6 = x3 * (x5**2 - x7**2) + 2.0 * x1 * x5 * x7 + x4 * (x6**2 - x8**2) + 2.0 * x2 * x6 * x8
    f7 = (
        x1 * x5 * (x5**2 - 3.0 * x7**2) + x3 * x7 * (x7**2 - 3.0 * x5**2)
        + x2 * x6 * (x6**2 - 3.0 * x8**2) + x4 * x8 * (x8**2 - 3.0 * x6**2)
    )  # fmt: skip
    f8 = (
        x3 * x5 * (x5**2 - 3.0 * x7**2) - x1 * x7 * (x7**2 - 3.0 * x5**2)
        + x4 * x6 * (x6**2 - 3.0 * x8**2) - x2 * x8 * (x8**2 - 3.0 * x6**2)
    )  # fmt: skip
    return f1, f2, f3, f4, f5, f6, f7, f8


def propane_combustion(
    x1: Array, x2: Array, x3: Array, x4: Array, x5: Array, x6: Array, x7: Array, x8: Array,
    x9: Array, x10: Array, x11: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """The full formulation of the combustion of propane of MINPACK-2, p = 40, R = 10."""
    p, R = 40.0, 10.0
    k5, k6, k7, k8, k9, k10 = 1.930e-1, 2.597e-3, 3.448e-3, 1.799e-5, 2.155e-4, 3.846e-5
    f1 = x1 + x4 - 3.0
    f2 = 2.0 * x1 + x2 + x4 + x7 + x8 + x9 + 2.0 * x10 - R
    f3 = 2.0 * x2 + 2.0 * x5 + x6 + x7 - 8.0
    f4 = 2.0 * x3 + x9 - 4.0 * R
    f5 = k5 * x2 * x4 - x1 * x5
    f6 = k6 * jnp.sqrt(x2 * x4) - jnp.sqrt(x1) * x6 * jnp.sqrt(p / x11)
    f7 = k7 * jnp.sqrt(x1 * x2) - jnp.sqrt(x4) * x7 * jnp.sqrt(p / x11)
    f8 = k8 * x1 - x4 * x8 * (p / x11)
    f9 = k9 * x1 * jnp.sqrt(x3) - x4 * x9 * jnp.sqrt(p / x11)
    f10 = k10 * x1**2 - x4**2 * x10 * (p / x11)
    f11 = x11 - (x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9 + x10)
    return f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11


def _normal_cdf(z: Array) -> Array:
    return 0.5 * (1.0 + jax.lax.erf(z / 2.0**0.5))


def black_scholes(s: Array, k: Array, r: Array, sigma: Array, t: Array) -> Array:
    """The price of a call by Black's formula of 1976, with the forward F = e^{rT} S."""
    f = jnp.exp(r * t) * s
    v = sigma * jnp.sqrt(t)
    d1 = (jnp.log(f / k) + 0.5 * sigma**2 * t) / v
    d2 = d1 - v
    return jnp.exp(-r * t) * (f * _normal_cdf(d1) - k * _normal_cdf(d2))

"""Fluxes between two cells of a gas."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

Array = Any


def _state_1d(u0: Array, u1: Array, u2: Array, p: Array) -> tuple[Array, Array, Array]:
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
    fl = _state_1d(l0, l1, l2, pl)
    fr = _state_1d(r0, r1, r2, pr)
    f0, f1, f2 = fl[0] + fr[0], fl[1] + fr[1], fl[2] + fr[2]
    c = 0.5 * root / a
    d0 = c0 + c * c1 - c * c2
    d1 = c0 * u + c * c1 * (u + a) - c * c2 * (u - a)
    d2 = c0 * 0.5 * q + c * c1 * (h + u * a) - c * c2 * (h - u * a)
    return 0.5 * (f0 - d0), 0.5 * (f1 - d1), 0.5 * (f2 - d2)


def roe_flux_3d(
    l0: Array, ul: Array, l4: Array, r0: Array, ur: Array, r4: Array
) -> tuple[Array, Array, Array]:
    """Roe's approximate Riemann solver for the three-dimensional Euler equations (Roe, 1981), γ = 0.5."""
    gamma = 0.5
    du0, du, du4 = r0 - l0, ur - ul, r4 - l4
    du1, du2, du3 = du[0:1], du[1:2], du[2:]
    weight = jnp.sqrt(l0) + jnp.sqrt(r0)
    vl, vr = ul / l0, ur / r0
    velocity = (jnp.sqrt(l0) * vl + jnp.sqrt(r0) * vr) / weight
    u, v, w = velocity[0:1], velocity[1:2], velocity[2:]
    pl = (gamma - 1.0) * (l4 - 0.5 * jnp.sum(ul**2) / l0)
    pr = (gamma - 1.0) * (r4 - 0.5 * jnp.sum(ur**2) / r0)
    hl, hr = (l4 + pl) / l0, (r4 + pr) / r0
    h = (jnp.sqrt(l0) * hl + jnp.sqrt(r0) * hr) / weight
    q = jnp.sum(velocity**2)
    a2 = (gamma - 1.0) * (h - 0.5 * q)
    a = jnp.sqrt(a2)
    fast, middle, slow = u + a, u, u - a
    c3 = ((gamma - 1.0) / a2 * ((h - q) * du0 + jnp.dot(velocity, du) - du4)) * middle
    c2 = (du3 / w - du1) * middle
    c1 = (du2 / v - du0) * middle
    k1 = du0 - c3
    k2 = (du1 - u * du0) / a
    c0 = 0.5 * (k1 - k2) * slow
    c4 = 0.5 * (k1 + k2) * fast
    fl, fr = _state_3d(ul, l4, vl, pl), _state_3d(ur, r4, vr, pr)
    d0 = c0 + c3 + c4 * fast
    d1 = c0 * slow + c3 * u + c4 * fast
    d2 = c0 * v + c1 * v + c3 * v + c4 * v
    d3 = c0 * w + c2 * w + c3 * w + c4 * w
    d4 = c0 * (h - u * a) + c1 * v**2 + c2 * w**2 + c3 * 0.5 * q + c4 * (h + u * a)
    f0, f123, f4 = fl[0] + fr[0], fl[1] + fr[1], fl[2] + fr[2]
    d123 = jnp.concatenate([d1, d2, d3])
    return 0.5 * (f0 - d0), 0.5 * (f123 - d123), 0.5 * (f4 - d4)


def _state_3d(u: Array, u4: Array, v: Array, p: Array) -> tuple[Array, Array, Array]:
    momentum = jnp.concatenate([p, jnp.zeros(2, u.dtype)]) + u * v
    return u[0:1], momentum, v[0:1] * (p + u4)

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

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule._jaxpr import Literal, Var, bind_equation, trace

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

Array = Any


# --- Graphs of a few vertices, by which books explain elimination -----------------------------------


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


# --- Fluxes between two cells of a gas --------------------------------------------------------------


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


# --- Kinematics, and two systems of equations from MINPACK-2 ----------------------------------------


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


# --- Losses of two small networks -------------------------------------------------------------------


def _layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    # Means are subtracted as a row, so on matrices not from the axis they were taken over: that is the
    # function whose counts are published.
    mean = jnp.mean(x, axis=-1)
    variance = jnp.sum((x - mean) ** 2, axis=-1) / x.shape[-1]
    return (x - mean) / jnp.sqrt(variance + 1e-6) * scale + shift


def _softmax(x: Array, axis: int) -> Array:
    largest = lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf))
    exponentials = jnp.exp(x - largest)
    return exponentials / jnp.sum(exponentials, axis=axis, keepdims=True)


def _cross_entropy(logits: Array, target: Array) -> Array:
    return -jnp.sum(target * jnp.log(_softmax(logits, -1)), axis=-1)


def perceptron(
    x: Array, y: Array, w1: Array, b1: Array, w2: Array, b2: Array, scale: Array, shift: Array
) -> Array:
    """A loss of a network with one hidden layer, tanh, layer norm and softmax cross-entropy."""
    hidden = _layer_norm(jnp.tanh(w1 @ x + b1), scale, shift)
    return _cross_entropy(jnp.tanh(w2 @ hidden + b2), y)


def _attention(
    x: Array, wq: Array, wk: Array, wv: Array, w: Array, b: Array, scale: Array, shift: Array
) -> Array:
    q, k, v = wq @ x, wk @ x, wv @ x
    context = _softmax(q.T @ k, 1) @ v
    z = w @ _layer_norm(x + context, scale, shift) + b
    return z * (1.0 / (1.0 + jnp.exp(-z)))


def encoder(
    x: Array, y: Array, wq1: Array, wq2: Array, wk1: Array, wk2: Array, wv1: Array, wv2: Array,
    w1: Array, w2: Array, b1: Array, b2: Array,
    scale1: Array, shift1: Array, scale2: Array, shift2: Array,
) -> Array:  # fmt: skip
    """The losses, one per row, of two blocks of attention, layer norm and SiLU."""
    hidden = _attention(x, wq1, wk1, wv1, w1, b1, scale1, shift1)
    return _cross_entropy(_attention(hidden, wq2, wk2, wv2, w2, b2, scale2, shift2), y)


# --- The price of an option, and its first derivatives written out as a program ---------------------
#
# The published counts of `black_scholes_jacobian` are those of a program that another program wrote: the
# price with its local partials, as formulas, and their products from the result back. What it multiplies,
# ones included, and what it computes in vain are part of the counts, so the same is written here.


def _normal_cdf(z: Array) -> Array:
    return (1.0 + lax.erf(z / jnp.sqrt(2.0))) / 2.0


def black_scholes(s: Array, k: Array, r: Array, sigma: Array, t: Array) -> Array:
    """The price of a call by Black's formula of 1976, with the forward F = e^{rT} S."""
    f = jnp.exp(r * t) * s
    d1 = (jnp.log(f / k) + sigma**2 / 2.0 * t) / (sigma * jnp.sqrt(t))
    d2 = d1 - sigma * jnp.sqrt(t)
    return jnp.exp(-r * t) * (f * _normal_cdf(d1) - k * _normal_cdf(d2))


# From the result z and the operands. A quotient has both of its partials, also by a number.
_PARTIALS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "add": lambda z, x, y: (jnp.ones_like(y), jnp.ones_like(x)),
    "sub": lambda z, x, y: (jnp.ones_like(y), -jnp.ones_like(x)),
    "mul": lambda z, x, y: (y, x),
    "div": lambda z, x, y: (1.0 / y, -x / y**2),
    "neg": lambda z, x: (-jnp.ones_like(x),),
    "exp": lambda z, x: (z,),
    "log": lambda z, x: (1.0 / x,),
    "sqrt": lambda z, x: (0.5 / z,),
    "integer_pow": lambda z, x: (2 * x**1,),
    "erf": lambda z, x: (2.0 * jnp.exp(-(x**2)) / jnp.sqrt(jnp.pi),),
    "convert_element_type": lambda z, x: (None,),
}


def _reverse_accumulated(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The gradient of a scalar function of scalars, accumulated in the open."""

    @wraps(function)
    def gradient(*arguments: Any) -> tuple[Any, ...]:
        program = trace(function, *arguments)[0].jaxpr
        values: dict[Any, Any] = dict(zip(program.invars, arguments, strict=True))
        partials = {}
        for eqn in program.eqns:
            operands = [a.val if isinstance(a, Literal) else values[a] for a in eqn.invars]
            (result,) = bind_equation(eqn, operands)
            values[eqn.outvars[0]] = result
            numbers = [_number(a) if isinstance(a, Literal) else values[a] for a in eqn.invars]
            partials[eqn.outvars[0]] = _PARTIALS[eqn.primitive.name](result, *numbers)
        adjoints: dict[Var, Any] = {program.outvars[0]: None}
        for eqn in reversed(program.eqns):
            adjoint = adjoints.pop(eqn.outvars[0])
            for operand, partial in zip(eqn.invars, partials[eqn.outvars[0]], strict=True):
                if not isinstance(operand, Literal):
                    part = _product(adjoint, partial)
                    adjoints[operand] = part + adjoints[operand] if operand in adjoints else part
        return tuple(adjoints[var] for var in program.invars)

    return gradient


def _number(literal: Literal) -> Any:
    """The number itself, which some versions of JAX keep in an array that cannot be squared."""
    return np.asarray(literal.val).item()


def _product(outer: Any, inner: Any) -> Any:
    """A product in which `None` stands for a one that is not written."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer * inner


def black_scholes_jacobian(s: Array, k: Array, r: Array, sigma: Array, t: Array) -> Any:
    """The first-order greeks, reverse-accumulated; their Jacobian has the second-order ones."""
    return _reverse_accumulated(black_scholes)(s, k, r, sigma, t)


# --- The tasks that orders are compared on, with points to evaluate them at -------------------------


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

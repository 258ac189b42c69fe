"""The price of an option, and its first derivatives written out as a program.

The published counts of `black_scholes_jacobian` are those of a program that another program wrote: the price
with its local partials, as formulas, and their products from the result back. What it multiplies, ones
included, and what it computes in vain are part of the counts, so the same is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule._jaxpr import Literal, Var, bind_equation, trace

Array = Any


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

"""The public transformations: functions in, functions out, as in `jax.jacrev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from chainrule.elimination._choose import OrderLike, choose_order
from chainrule.elimination._linearize import Linearization, linearize_traced, trace_function

__all__ = ["hessian", "jacobian", "linearization", "value_and_jacobian"]

Argnums = int | Sequence[int]


def linearization(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    order: OrderLike = "auto",
    has_aux: bool = False,
) -> Callable[..., Linearization]:
    """The function that gives `fun`'s value, its Jacobian in structured blocks, and what they cost.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        order: in which order to eliminate the vertices of the computational graph: `"auto"` searches,
            `"forward"`, `"reverse"` and `"markowitz"` are the classical ones, and a sequence of vertex
            numbers is taken as it is. Every order gives the same Jacobian.
        has_aux: whether `fun` returns a pair of which only the first is differentiated.

    Returns:
        A function of `fun`'s arguments. It can be used under `jit`, `vmap`, `grad` and the like, but its
        result is a plain object, not a pytree: take `.blocks`, `.jacobian`, `.value` from it inside.

    Example:
        >>> import jax.numpy as jnp
        >>> linearization(lambda x: x[1:] - x[:-1])(jnp.arange(4.0)).blocks
        StructuredJacobian(f32[3] ← [4], 6 of 12 entries: -1·diagonal(1) + offset-diagonal(1))
    """

    @wraps(fun)
    def linearized(*args: Any, **kwargs: Any) -> Linearization:
        traced = trace_function(fun, argnums, args, kwargs, has_aux=has_aux)
        return linearize_traced(traced, choose_order(traced.graph, order))

    return linearized


def jacobian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    order: OrderLike = "auto",
    has_aux: bool = False,
    sparse: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of `fun` by vertex elimination; the result is arranged like that of `jax.jacrev`.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        order: see `linearization`.
        has_aux: whether `fun` returns `(result, auxiliary)`; then so does the Jacobian.
        sparse: leave the blocks as `StructuredJacobian`s.

    Example:
        >>> import jax.numpy as jnp
        >>> jacobian(lambda x: x**2)(jnp.arange(3.0))
        Array([[0., 0., 0.],
               [0., 2., 0.],
               [0., 0., 4.]], dtype=float32)
    """
    both = value_and_jacobian(fun, argnums, order=order, has_aux=has_aux, sparse=sparse)

    @wraps(fun)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        value, derivative = both(*args, **kwargs)
        return (derivative, value[1]) if has_aux else derivative

    return jacobian_of


def value_and_jacobian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    order: OrderLike = "auto",
    has_aux: bool = False,
    sparse: bool = False,
) -> Callable[..., Any]:
    """The value of `fun` and its Jacobian, from one evaluation.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        order: see `linearization`.
        has_aux: whether `fun` returns `(result, auxiliary)`; then the value is that pair.
        sparse: leave the blocks as `StructuredJacobian`s.
    """
    linearized = linearization(fun, argnums, order=order, has_aux=has_aux)

    @wraps(fun)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        found = linearized(*args, **kwargs)
        value = (found.value, found.aux) if has_aux else found.value
        return value, found.blocks if sparse else found.jacobian

    return both


def hessian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    order: OrderLike = "auto",
    has_aux: bool = False,
    sparse: bool = False,
) -> Callable[..., Any]:
    """The Hessian of `fun`, as the Jacobian of its reverse-accumulated Jacobian.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        order: the order of the second differentiation; see `linearization`.
        has_aux: whether `fun` returns `(result, auxiliary)`; then so does the Hessian.
        sparse: leave the blocks as `StructuredJacobian`s.
    """
    gradient = jacobian(fun, argnums, order="reverse", has_aux=has_aux)
    return jacobian(gradient, argnums, order=order, has_aux=has_aux, sparse=sparse)

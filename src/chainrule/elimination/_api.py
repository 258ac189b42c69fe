"""The public transformations: functions in, functions out, as in `jax.jacrev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

import jax
import jax.numpy as jnp

from chainrule._jaxpr import evaluate
from chainrule.elimination._backends import Backend, run_dense
from chainrule.elimination._choose import OrderLike, choose_order
from chainrule.elimination._explain import choose_method
from chainrule.elimination._graph import check_rules
from chainrule.elimination._linearize import (
    Linearization,
    Traced,
    linearize_traced,
    trace_function,
)

__all__ = ["hessian", "jacobian", "linearization", "value_and_jacobian"]

Argnums = int | Sequence[int]
Method = Literal["auto", "elimination", "jacrev", "jacfwd"]


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
        StructuredJacobian(f32[3] ← [4], 6 of 12 entries: offset-diagonal(1) + -1·diagonal(1))
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
    method: Method = "auto",
    order: OrderLike = "auto",
    backend: Backend = "xla",
    has_aux: bool = False,
    sparse: bool = False,
    strict: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of `fun`; the result is arranged like that of `jax.jacrev`.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        method: `"elimination"`, `"jacrev"`, `"jacfwd"`, or `"auto"`: the one with the least estimated
            work (see `explain_jacobian`). An explicit order, `sparse` or a native backend mean elimination.
        order: see `linearization`.
        backend: `"native"` makes the eliminated program one kernel on the CPU where that can be done.
        has_aux: whether `fun` returns `(result, auxiliary)`; then so does the Jacobian.
        sparse: leave the blocks as `StructuredJacobian`s.
        strict: raise a `CapabilityError` that names the equations whose local Jacobians would come from
            JAX, dense, because there is no rule for their primitives.

    Example:
        >>> import jax.numpy as jnp
        >>> jacobian(lambda x: x**2)(jnp.arange(3.0))
        Array([[0., 0., 0.],
               [0., 2., 0.],
               [0., 0., 4.]], dtype=float32)
    """
    settings = _Settings(method, order, backend, has_aux, sparse, strict, wants_value=False)

    @wraps(fun)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        _, aux, derivative = _compute(fun, argnums, settings, args, kwargs)
        return (derivative, aux) if has_aux else derivative

    return jacobian_of


def value_and_jacobian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    method: Method = "auto",
    order: OrderLike = "auto",
    backend: Backend = "xla",
    has_aux: bool = False,
    sparse: bool = False,
    strict: bool = False,
) -> Callable[..., Any]:
    """The value of `fun` and its Jacobian, from one evaluation.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        method: see `jacobian`.
        order: see `linearization`.
        backend: see `jacobian`.
        has_aux: whether `fun` returns `(result, auxiliary)`; then the value is that pair.
        sparse: leave the blocks as `StructuredJacobian`s.
        strict: see `jacobian`.
    """
    settings = _Settings(method, order, backend, has_aux, sparse, strict, wants_value=True)

    @wraps(fun)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, aux, derivative = _compute(fun, argnums, settings, args, kwargs)
        return ((value, aux) if has_aux else value), derivative

    return both


@dataclass(frozen=True)
class _Settings:
    """What was asked for, besides the function."""

    method: Method
    order: OrderLike
    backend: Backend
    has_aux: bool
    sparse: bool
    strict: bool
    wants_value: bool

    @property
    def may_sweep(self) -> bool:
        """Whether JAX's own Jacobian would do."""
        is_free = self.order == "auto" and self.backend == "xla" and not self.sparse
        return self.method == "auto" and is_free and not self.strict


def _compute(
    fun: Callable[..., Any],
    argnums: Argnums,
    settings: _Settings,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    """The value, the auxiliary result and the Jacobian, by the method that was asked for or chosen."""
    traced = trace_function(fun, argnums, args, kwargs, has_aux=settings.has_aux)
    if settings.method in _SWEEPS:
        return _sweep(settings.method, traced)
    if settings.strict:
        check_rules(traced.graph)
    vertices = choose_order(traced.graph, settings.order)
    if settings.may_sweep:
        chosen = choose_method(traced.graph, vertices)
        if chosen in _SWEEPS:
            return _sweep(chosen, traced)
    if settings.sparse:
        found = linearize_traced(traced, vertices)
        return found.value, found.aux, found.blocks
    return run_dense(traced, vertices, settings.backend, wants_value=settings.wants_value)


_SWEEPS: dict[str, Callable[..., Any]] = {"jacrev": jax.jacrev, "jacfwd": jax.jacfwd}


def _as_inexact(value: Any) -> Any:
    """Integer results have the derivative zero, which JAX takes only of floats."""
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(float)


def _sweep(method: str, traced: Traced) -> tuple[Any, Any, Any]:
    """JAX's own Jacobian of the traced program, in our arrangement."""
    n_targets = traced.out_tree.num_leaves

    def targets_and_all(*operands: Any) -> tuple[list[Any], list[Any]]:
        outputs = evaluate(traced.graph.program, operands)
        return [_as_inexact(value) for value in outputs[:n_targets]], outputs

    positions = tuple(range(len(traced.operands)))
    rows, outputs = _SWEEPS[method](targets_and_all, positions, has_aux=True)(*traced.operands)
    blocks = [jax.tree.unflatten(traced.in_tree, list(row)) for row in rows]
    value = jax.tree.unflatten(traced.out_tree, outputs[:n_targets])
    aux = None
    if traced.aux_tree is not None:
        aux = jax.tree.unflatten(traced.aux_tree, outputs[n_targets:])
    return value, aux, jax.tree.unflatten(traced.out_tree, blocks)


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

"""The public transformations: functions in, functions out, as in `jax.jacrev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax

from chainrule._errors import InputError
from chainrule.elimination._choose import OrderLike, choose_order
from chainrule.elimination._graph import check_rules
from chainrule.elimination._linearize import Linearization, linearize_traced, trace_function
from chainrule.elimination._methods import is_being_compiled, make_plan, pays_native
from chainrule.elimination._run import (
    Backend,
    Method,
    check_backend,
    check_method,
    run_method,
    run_plan,
    sweep_untraced,
)

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
    backend: Backend = "auto",
    has_aux: bool = False,
    sparse: bool = False,
    strict: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of `fun`; the result is arranged like that of `jax.jacrev`.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        method: `"elimination"`, `"jacrev"`, `"jacfwd"`, `"compressed"` (one product per colour of the
            sparsity pattern), or `"auto"`: the one with the least estimated time (see `explain_jacobian`).
            `"auto"` works wherever `jax.jacrev` or `jax.jacfwd` does: what the others cannot do is left to
            these. An explicit order, backend, `sparse` or `strict` mean elimination.
        order: see `linearization`.
        backend: of an elimination. `"native"` makes the eliminated program one kernel where that can be
            done, `"xla"` leaves it to XLA, `"auto"` takes what is estimated to be faster. A program that
            `jax.export` writes for other machines needs `"xla"`.
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
    backend: Backend = "auto",
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

    def __post_init__(self) -> None:
        check_method(self.method)
        check_backend(self.backend)
        if self.method not in ("auto", "elimination") and self.needs_elimination:
            raise InputError(
                f"method={self.method!r} has no elimination order, kernel, structured blocks or rules of "
                "ours. Leave `order`, `backend`, `sparse` and `strict` out, or use method='elimination'.",
                code="method_conflict",
            )

    @property
    def needs_elimination(self) -> bool:
        """Whether something was asked for that no other method has; all of them run on XLA."""
        has_order = not isinstance(self.order, str) or self.order != "auto"
        return has_order or self.backend == "native" or self.sparse or self.strict

    @property
    def leaves_the_choice(self) -> bool:
        """Whether anything but elimination would do."""
        return self.method == "auto" and self.backend == "auto" and not self.needs_elimination


def _compute(
    fun: Callable[..., Any],
    argnums: Argnums,
    settings: _Settings,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    """The value, the auxiliary result and the Jacobian, by the method that was asked for or chosen."""
    try:
        return _compute_traced(fun, argnums, settings, args, kwargs)
    except _NEEDS_VALUES:
        if not settings.leaves_the_choice:
            raise
        return _sweep_with_values(fun, argnums, settings, args, kwargs)


_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a function that is being traced looks at values: `if x[0] > 0`, for example."""


def _sweep_with_values(
    fun: Callable[..., Any],
    argnums: Argnums,
    settings: _Settings,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    """JAX's own sweep over a function that looks at values. Outside of `jit`, JAX does not trace those."""

    def with_outputs(*given: Any, **named: Any) -> tuple[Any, Any]:
        result = fun(*given, **named)
        value, aux = result if settings.has_aux else (result, None)
        return value, (value, aux)

    positions = tuple(argnums) if isinstance(argnums, Sequence) else argnums
    sweep = jax.jacrev(with_outputs, positions, has_aux=True)
    derivative, (value, aux) = sweep(*args, **kwargs)
    return value, aux, derivative


def _compute_traced(
    fun: Callable[..., Any],
    argnums: Argnums,
    settings: _Settings,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    wants_value = settings.wants_value
    if settings.leaves_the_choice:
        try:
            traced = trace_function(
                fun, argnums, args, kwargs, has_aux=settings.has_aux, needs_graph=False
            )
            plan = make_plan(traced, compiled=is_being_compiled(traced))
            return run_plan(traced, plan, wants_value=wants_value)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            return sweep_untraced(fun, argnums, args, kwargs, error, has_aux=settings.has_aux)
    eliminates = settings.method in ("auto", "elimination")
    traced = trace_function(
        fun, argnums, args, kwargs, has_aux=settings.has_aux, needs_graph=eliminates
    )
    if not eliminates:
        return run_method(traced, (), settings.method, "xla", wants_value=wants_value)
    if settings.strict:
        check_rules(traced.graph)
    vertices = choose_order(traced.graph, settings.order)
    if settings.sparse:
        found = linearize_traced(traced, vertices)
        return found.value, found.aux, found.blocks
    backend: str = settings.backend
    if backend == "auto":
        backend = "native" if pays_native(traced, vertices) else "xla"
    return run_method(traced, vertices, "elimination", backend, wants_value=wants_value)


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

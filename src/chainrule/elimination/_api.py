"""The public transformations: functions in, functions out, as in `jax.jacrev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import InputError
from chainrule._jaxpr import evaluate
from chainrule.elimination._counting import published_counts
from chainrule.elimination._graph import check_rules
from chainrule.elimination._linearize import (
    Linearization,
    Traced,
    linearize_traced,
    trace_function,
)
from chainrule.elimination._methods import (
    Backend,
    Method,
    check_backend,
    check_method,
    is_being_compiled,
    list_ways,
    pays_native,
    run_best,
    run_method,
)
from chainrule.elimination._orders import OrderLike, choose_order
from chainrule.elimination._planning import plan_and_run, why_not_planned
from chainrule.elimination._sweeps import Outcome, sweep_untraced

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
            sparsity pattern), `"planned"` (the cheapest products of the components that `fun` calls, see
            `plan_jacobian`), or `"auto"`: products are planned where `fun` calls components that are not
            inlined; else it is the method with the least estimated time (see `explain_jacobian`). `"auto"`
            works wherever `jax.jacrev` or `jax.jacfwd` does: what the others cannot do is left to
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
    return _derivative(fun, argnums, settings)


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
    return _derivative(fun, argnums, settings)


def _derivative(
    fun: Callable[..., Any], argnums: Argnums, settings: _Settings
) -> Callable[..., Any]:
    """The function that computes the Jacobian, with the value or without."""

    @wraps(fun)
    def derivative(*args: Any, **kwargs: Any) -> Any:
        value, aux, jacobian_of = _compute(fun, argnums, settings, args, kwargs)
        if settings.wants_value:
            return ((value, aux) if settings.has_aux else value), jacobian_of
        return (jacobian_of, aux) if settings.has_aux else jacobian_of

    return derivative


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
    plans: bool = False
    """Whether products of components are planned although an order is given."""

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
    def may_be_planned(self) -> bool:
        """Whether products of components may be planned although elimination is asked for."""
        return self.plans or (self.sparse and replace(self, sparse=False).leaves_the_choice)

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
) -> Outcome:
    """The value, the auxiliary result and the Jacobian, by the method that was asked for or chosen."""
    if settings.leaves_the_choice:
        return _compute_in_the_best_way(fun, argnums, settings, args, kwargs)
    eliminates = settings.method in ("auto", "elimination")
    traced = trace_function(
        fun, argnums, args, kwargs, has_aux=settings.has_aux, needs_graph=eliminates
    )
    if settings.may_be_planned and _is_planned(traced):
        return plan_and_run(traced, sparse=settings.sparse)
    if not eliminates:
        return run_method(traced, (), settings.method, "xla", wants_value=settings.wants_value)
    if settings.strict:
        check_rules(traced.graph)
    vertices = choose_order(traced.graph, settings.order)
    if settings.sparse:
        found = linearize_traced(traced, vertices)
        return found.value, found.aux, found.blocks
    backend: str = settings.backend
    if backend == "auto":
        backend = "native" if pays_native(traced, vertices) else "xla"
    return run_method(traced, vertices, "elimination", backend, wants_value=settings.wants_value)


def _compute_in_the_best_way(
    fun: Callable[..., Any],
    argnums: Argnums,
    settings: _Settings,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Outcome:
    """By the method with the least estimated time; a function that JAX cannot trace is swept as it is."""
    has_aux = settings.has_aux
    try:
        traced = trace_function(fun, argnums, args, kwargs, has_aux=has_aux, needs_graph=False)
        if _is_planned(traced):
            return plan_and_run(traced, sparse=False)
        ways = list_ways(traced, compiled=is_being_compiled(traced))
        return run_best(traced, ways, wants_value=settings.wants_value)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        return sweep_untraced(fun, argnums, args, kwargs, error, has_aux=has_aux)


def _is_planned(traced: Traced) -> bool:
    return bool(traced.graph.sites) and why_not_planned(traced) is None


def hessian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    order: OrderLike = "auto",
    has_aux: bool = False,
    sparse: bool = False,
) -> Callable[..., Any]:
    """The Hessian of `fun`, as the Jacobian of its reverse-accumulated Jacobian.

    Where `fun` calls components that are not inlined, the products of both differentiations are planned (see
    `plan_jacobian`). The second one takes Hessian-vector products of the components; one that has none is
    named in the error.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.
        order: the order of the second differentiation; see `linearization`.
        has_aux: whether `fun` returns `(result, auxiliary)`; then so does the Hessian.
        sparse: leave the blocks as `StructuredJacobian`s.
    """
    # The gradient is one row, which reverse accumulation gets in one pass; the Jacobian of the gradient is
    # what has an order worth searching. The first differentiation is planned only if the second one may be:
    # with an explicit order the user decides about both.
    plans = isinstance(order, str) and order == "auto"
    inner = _Settings("auto", "reverse", "auto", has_aux, False, False, False, plans)
    gradient = _derivative(fun, argnums, inner)
    return jacobian(gradient, argnums, order=order, has_aux=has_aux, sparse=sparse)


def gauss_newton_product(
    fun: Callable[..., Any], argnums: Argnums = 0
) -> Callable[..., tuple[Any, Callable[[Any], Any]]]:
    """The function that gives `fun`'s value and the product v ↦ Jᵀ J v with its Jacobian J.

    J is never formed. All components are applied once; each product then takes one JVP and one VJP of each.

    Args:
        fun: a function of pytrees that JAX can trace.
        argnums: which positional arguments to differentiate with respect to.

    Returns:
        A function of `fun`'s arguments that returns the value, and a function of a tree like what is
        differentiated: the argument, or the tuple of arguments.

    Raises:
        CapabilityError: a component that `fun` calls has no derivative; it is named.

    Example:
        >>> import jax.numpy as jnp
        >>> value, product = gauss_newton_product(lambda x: x**2)(jnp.array([1.0, 3.0]))
        >>> product(jnp.array([1.0, 1.0]))
        Array([ 4., 36.], dtype=float32)
    """

    @wraps(fun)
    def linearized(*args: Any, **kwargs: Any) -> tuple[Any, Callable[[Any], Any]]:
        traced = trace_function(fun, argnums, args, kwargs, needs_graph=False)

        def flat(*operands: Any) -> tuple[list[Any], list[Any]]:
            outputs = evaluate(traced.program, operands)
            return [out for out in outputs if jnp.issubdtype(out.dtype, jnp.inexact)], outputs

        # The components are applied here, once. `push` is v ↦ J v with what they kept; its transpose u ↦ Jᵀ u
        # needs no second forward pass. Nothing is conjugated: for a complex result this is Jᵀ J, not J* J.
        _, push, outputs = jax.linearize(flat, *traced.operands, has_aux=True)
        pull = jax.linear_transpose(push, *traced.operands)

        def product(vector: Any) -> Any:
            leaves = traced.in_tree.flatten_up_to(vector)
            return jax.tree.unflatten(traced.in_tree, pull(push(*leaves)))

        return jax.tree.unflatten(traced.out_tree, outputs), product

    return linearized


def jacve(
    fun: Callable[..., Any],
    order: OrderLike = "auto",
    argnums: Argnums = (0,),
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of `fun` by vertex elimination.

    Args:
        fun: a function of pytrees that JAX can trace.
        order: `"forward"`, `"reverse"`, `"markowitz"`, `"auto"`, or vertex numbers (an equation of the
            jaxpr each, from 1).
        argnums: which positional arguments to differentiate with respect to.
        has_aux: return `(value, jacobian)` instead of the Jacobian alone.
        count_ops: return `(result, counts)`, with `num_muls`, `num_adds` and `order_counts`, by
            graphax's convention, in which dead ends count too; `linearization(...).counts` has what this
            package does.
        sparse_representation: leave the blocks as `StructuredJacobian`s.

    Returns:
        A function of `fun`'s arguments, whose result is arranged like that of `jax.jacrev(fun, argnums)`.
    """
    linearized = linearization(fun, argnums, order=order)

    @wraps(fun)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        found = linearized(*args, **kwargs)
        result = found.blocks if sparse_representation else found.jacobian
        if has_aux:
            result = (found.value, result)
        return (result, _counts(found, order)) if count_ops else result

    return jacobian_of


_PURE = {"forward": "forward", "fwd": "forward", "reverse": "reverse", "rev": "reverse"}


def _counts(found: Linearization, order: OrderLike) -> dict[str, Any]:
    """Counted as graphax counts: also what is multiplied on paths that lead nowhere."""
    pure = _PURE.get(order) if isinstance(order, str) else None
    counts = published_counts(found.graph, pure or found.order)
    return {
        "num_muls": counts.multiplications,
        "num_adds": counts.additions,
        "order_counts": list(counts.per_vertex),
    }

"""Coupled components: the state that all of them agree on, with exact gradients.

A coupled system is a function f whose result has the form of its argument: every component computes its part
of the state from the others'. The solution x* = f(x*, p) is found by Newton's method or by iteration. Its
gradient does not go through the iterations. By the implicit function theorem

    dx*/dp = (I - ∂f/∂x)⁻¹ ∂f/∂p        at the solution,

so one linear solve with the derivatives of the components there gives it. How the solution was found does
not matter. Small systems are solved with the matrix itself, large ones by GMRES with products only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.flatten_util import ravel_pytree

from chainrule._describe import names_its_arguments
from chainrule._errors import ComponentError, InputError
from chainrule.bridge import component_errors, from_callable
from chainrule.optimize._variables import call_traced

_DENSE_UP_TO = 200
"""States with more elements are solved with products instead of a matrix."""


class Equilibrium(NamedTuple):
    """A fixed point.

    Attributes:
        x: the state, in the form of the start.
        residual: the largest difference between `x` and `f(x)`, relative to one plus the largest element.
        steps: how many steps of the method were made.
    """

    x: Any
    residual: Any
    steps: Any


@names_its_arguments
def fixed_point(
    f: Callable[..., Any],
    x0: Any,
    *parameters: Any,
    method: Literal["newton", "iterate"] = "newton",
    tolerance: float | None = None,
    max_steps: int = 100,
    damping: float = 1.0,
) -> Equilibrium:
    """The state x = f(x, *parameters), for components that depend on each other.

    Differentiable with respect to the parameters, and to what `f` closes over, under every transformation of
    JAX; not with respect to `x0`.

    Args:
        f: takes a state and the parameters, and returns the state that the components compute from them:
            nested data of the same form. Components are called by `apply_component` inside.
        x0: where to begin.
        *parameters: what else the components depend on, as nested data.
        method: `"newton"` uses the derivatives of the components; `"iterate"` repeats `f`, which converges
            where the components depend on each other weakly.
        tolerance: of the residual, relative to one plus the largest element of the state; 1e-10 where the
            whole state is in double precision and 1e-5 otherwise by default.
        max_steps: of the method.
        damping: of `"iterate"`: the part of a step that is taken, between 0 and 1.

    Returns:
        The state, and how it was reached.

    Raises:
        InputError: the result of `f` does not have the form of `x0` (`not_a_state`), or an option makes no
            sense (`bad_option`).
        ComponentError: the method did not converge (`not_converged`). A compiled program raises an error of
            JAX in its place, and the `ComponentError` inside of `chainrule.component_errors()`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from chainrule import fixed_point
        >>> solve = lambda p: fixed_point(lambda x, p: jnp.cos(p * x), jnp.array(0.5), p).x
        >>> print(round(float(solve(1.0)), 4), round(float(jax.grad(solve)(1.0)), 4))
        0.7391 -0.2974
    """
    _check_options(method, tolerance, max_steps, damping)
    start = jax.tree.map(jnp.asarray, x0)
    _check_form(start, jax.eval_shape(partial(call_traced, f), start, *parameters))
    flat, unravel = ravel_pytree(start)
    if tolerance is None:
        is_double = all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(start))
        tolerance = 1e-10 if is_double else 1e-5

    def difference(x: Any) -> Any:
        return ravel_pytree(f(unravel(x), *parameters))[0].astype(x.dtype) - x

    # What the components depend on is taken out of the function, so that it can be differentiated.
    function, hidden = jax.closure_convert(difference, flat)
    settings = _Settings(method, tolerance, max_steps, damping)
    with component_errors():
        x, residual, steps = _root(function, settings, jax.lax.stop_gradient(flat), hidden)
    x = _require_converged(x, residual, steps, method, tolerance)
    return Equilibrium(unravel(x), residual, steps.astype(int))


class _Settings(NamedTuple):
    """How a root is searched."""

    method: str
    tolerance: float
    max_steps: int
    damping: float


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _root(
    function: Callable[..., Any], settings: _Settings, x: Any, hidden: Any
) -> tuple[Any, Any, Any]:
    """The root of function(·, *hidden) from x on, with its residual and the number of steps, as floats."""

    def g(x: Any) -> Any:
        return function(x, *hidden)

    def goes_on(state: _State) -> Any:
        # A residual that is not a number ends the search too.
        return (_residual(state) > settings.tolerance) & (state.steps < settings.max_steps)

    def move(state: _State) -> _State:
        if settings.method == "newton":
            # Newton for d(x) = f(x) - x = 0: d'(x) step = -d(x). The linear solve need not be exact, since
            # the next step begins where this one ends; the tolerance of the search decides.
            step = -_solve_linear(lambda v: jax.jvp(g, (state.x,), (v,))[1], state.difference, 1e-8)
        else:
            step = settings.damping * state.difference
        x = state.x + step
        return _State(x, g(x), state.steps + 1)

    found = jax.lax.while_loop(goes_on, move, _State(x, g(x), jnp.zeros((), x.dtype)))
    return found.x, _residual(found), found.steps


@_root.defjvp
def _root_jvp(
    function: Callable[..., Any], settings: _Settings, primals: Any, tangents: Any
) -> tuple[Any, Any]:
    """0 = g(x*, h) for every h, so ∂g/∂x dx* = -∂g/∂h dh. Through `_root` itself, for higher orders.

    The rule is linear in dh. In reverse mode JAX transposes it: one solve with (∂g/∂x)ᵀ, then -(∂g/∂h)ᵀ.
    """
    start, hidden = primals
    x, residual, steps = _root(function, settings, start, hidden)
    _, change = jax.jvp(lambda *hidden: function(x, *hidden), tuple(hidden), tuple(tangents[1]))
    tangent = _solve_for_derivative(
        lambda v: jax.jvp(lambda x: function(x, *hidden), (x,), (v,))[1],
        -change,
        settings.tolerance,
    )
    zero = jnp.zeros((), x.dtype)
    return (x, residual, steps), (tangent, zero, zero)


class _State(NamedTuple):
    """A step of the search: the state, f(x) - x there, and how many steps were made."""

    x: Any
    difference: Any
    steps: Any


def _residual(state: _State) -> Any:
    return jnp.max(jnp.abs(state.difference), initial=0.0) / (
        1 + jnp.max(jnp.abs(state.x), initial=0.0)
    )


def _solve_linear(g: Callable[[Any], Any], y: Any, tolerance: float) -> Any:
    """v with g(v) = y for a linear g: by its matrix, or by products where that would be large."""
    if y.size > _DENSE_UP_TO:
        operator = lx.FunctionLinearOperator(g, jax.eval_shape(lambda: y))
        solver = lx.GMRES(rtol=tolerance / 10, atol=tolerance / 10, restart=50)
        return lx.linear_solve(operator, y, solver, throw=False).value
    # g is linear, so its Jacobian is the same everywhere: it is taken at 0.
    return jnp.linalg.solve(jax.jacfwd(g)(jnp.zeros_like(y)), y)


def _solve_for_derivative(g: Callable[[Any], Any], y: Any, tolerance: float) -> Any:
    """v with g(v) = y, or an error: no later step mends what this solve leaves, as in Newton's method."""
    if y.size <= _DENSE_UP_TO:
        return _solve_linear(g, y, tolerance)

    def solve(g: Callable[[Any], Any], y: Any) -> Any:
        v = _solve_linear(g, y, tolerance)
        return _require_solved(v, jnp.linalg.norm(g(v) - y), jnp.linalg.norm(y), tolerance)

    # The check is not linear in y, so JAX cannot transpose it. Here it need not: the transposed system gets a
    # solve, and a check, of its own.
    return jax.lax.custom_linear_solve(g, y, solve, transpose_solve=solve)


def _require_solved(v: Any, left: Any, size: Any, tolerance: float) -> Any:
    """The solution of a linear system, or an error."""
    # GMRES aims at tolerance / 10. Products by differences are wrong by about the root of the precision, and
    # it stops there; a solve that failed leaves about as much as there was. The root is between the two.
    limit = tolerance**0.5

    def check(left: Any, size: Any) -> Any:
        if not left <= limit * size:  # a NaN is refused as well
            raise ComponentError(
                "The derivative of fixed_point has a linear system that GMRES did not solve: the residual is "
                f"{float(left):.2g}, of {float(size):.2g} at the start. Scale the state, or let f use the "
                "part of the state that it has just computed in place of the old one.",
                code="not_converged",
            )
        return left

    checked = from_callable(check, abstract=lambda left, size: left, name="fixed_point")
    # The solution depends on what the check returns, so that XLA keeps the call.
    return jnp.where(checked(left, size) <= limit * size, v, jnp.nan)


def _require_converged(x: Any, residual: Any, steps: Any, method: str, limit: float) -> Any:
    """The state, or an error: here where the numbers are known, from the compiled program otherwise."""

    def check(residual: Any, steps: Any) -> Any:
        if not residual <= limit:  # a NaN is refused as well
            raise ComponentError(
                f"fixed_point ({method}) did not converge: begin closer, allow more max_steps, or use "
                + (
                    "method='newton'"
                    if method == "iterate"
                    else "method='iterate' with damping=0.5"
                )
                + f". After {int(steps)} steps the residual is {float(residual):.2g}, which is more than "
                f"{limit:.2g}.",
                code="not_converged",
            )
        return residual

    residual, steps = jax.lax.stop_gradient((residual, steps))
    if not isinstance(residual, jax.core.Tracer):
        check(residual, steps)
        return x
    checked = from_callable(check, abstract=lambda residual, steps: residual, name="fixed_point")
    # The state depends on what the check returns, so that XLA keeps the call.
    return jnp.where(checked(residual, steps) <= limit, x, jnp.nan)


def _check_options(method: str, tolerance: float | None, max_steps: int, damping: float) -> None:
    for name, value, fits, expected in (
        ("method", method, method in ("newton", "iterate"), "'newton' or 'iterate'"),
        ("tolerance", tolerance, tolerance is None or tolerance > 0, "a positive number"),
        ("max_steps", max_steps, isinstance(max_steps, int) and max_steps >= 1, "1 or more"),
        ("damping", damping, 0 < damping <= 1, "above 0 and at most 1"),
    ):
        if not fits:
            raise InputError(
                f"Expected {name} to be {expected}; found {value!r}.", code="bad_option"
            )


def _check_form(start: Any, result: Any) -> None:
    """Refuse a function whose result could not be its next argument."""
    before_after: tuple[Any, Any] = jax.tree.structure(start), jax.tree.structure(result)
    if before_after[0] != before_after[1]:
        raise InputError(
            f"Expected f to return a state of the form {before_after[0]}; found {before_after[1]}.",
            code="not_a_state",
        )
    paths = jax.tree_util.tree_leaves_with_path(start)
    for (path, before), after in zip(paths, jax.tree.leaves(result), strict=True):
        name = jax.tree_util.keystr(path) or "the state"
        if not jnp.issubdtype(before.dtype, jnp.floating):
            raise InputError(
                f"Expected a state of floating-point numbers; {name} is {before.dtype}. Write 1.0 instead "
                "of 1, and pass what does not vary as a parameter.",
                code="not_a_state",
            )
        if np.shape(before) != after.shape:
            raise InputError(
                f"Expected f to return {name} of shape {list(np.shape(before))}; found {list(after.shape)}.",
                code="not_a_state",
            )

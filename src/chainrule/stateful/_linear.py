"""Derivatives at a point: `jvp`, `vjp`, `linearize`.

As in JAX they take the point right away. What `kwargs_mask` selects counts as one more, last primal: its
tangents are given last, its cotangents come last, as `{keyword: {path: value}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from chainrule.stateful._call import Call
from chainrule.stateful._selection import Selection

__all__ = ["jvp", "linearize", "vjp"]


def jvp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    /,
    has_aux: bool = False,
    *,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """The value of a function and its derivative in a direction.

    Args:
        fun: the function.
        primals: its positional arguments.
        tangents: the direction; with `kwargs_mask`, one more entry for the selected parameters.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters that move too (see `grad`).
        **tracked: the function's keyword arguments.

    Returns:
        `(value, tangent)`, or `(value, tangent, aux)`.
    """
    call = Call(tracked)
    selection = Selection(call, kwargs_mask)
    function = selection.with_aux(fun, has_aux)
    value, tangent, (aux, values) = jax.jvp(
        function, selection.arguments(tuple(primals)), tuple(tangents), has_aux=True
    )
    return call.finish((value, tangent, aux) if has_aux else (value, tangent), values)


def vjp(
    fun: Callable[..., Any],
    /,
    *primals: Any,
    has_aux: bool = False,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """The value of a function and the function that pulls cotangents back.

    Args:
        fun: the function.
        *primals: its positional arguments.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters to pull back to (see `grad`).
        **tracked: the function's keyword arguments.

    Returns:
        `(value, pull)`, or `(value, pull, aux)`; `pull(cotangent)` is a tuple with one entry per primal,
        and with `kwargs_mask` one more for the selected parameters.
    """
    call = Call(tracked)
    selection = Selection(call, kwargs_mask)
    function = selection.with_aux(fun, has_aux)
    value, pull, (aux, values) = jax.vjp(function, *selection.arguments(primals), has_aux=True)
    return call.finish((value, pull, aux) if has_aux else (value, pull), values)


def linearize(
    fun: Callable[..., Any],
    /,
    *primals: Any,
    has_aux: bool = False,
    kwargs_mask: Any = None,
    **tracked: Any,
) -> Any:
    """The value of a function and its linear approximation there.

    Args:
        fun: the function.
        *primals: its positional arguments.
        has_aux: whether the function returns `(value, aux)`.
        kwargs_mask: parameters that move too (see `grad`).
        **tracked: the function's keyword arguments.

    Returns:
        `(value, push)`, or `(value, push, aux)`; `push(*tangents)` takes one tangent per primal, and with
        `kwargs_mask` one more for the selected parameters.
    """
    call = Call(tracked)
    selection = Selection(call, kwargs_mask)
    function = selection.with_aux(fun, has_aux)
    value, push, (aux, values) = jax.linearize(
        function, *selection.arguments(primals), has_aux=True
    )
    return call.finish((value, push, aux) if has_aux else (value, push), values)

"""A captured function: traced and compiled once per signature, then as fast as `jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from chainrule.harvest._static import has_static_leaves, protect, unprotect

__all__ = ["compile_capture"]

Capture = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], tuple[Any, dict[str, Any]]]
"""Traces a function at arguments and gives its result and what was found inside, by name."""


def compile_capture(
    function: Callable[..., Any],
    capture: Capture,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """`function` with what `capture` finds inside as a second result.

    The work is done by one `jax.jit`; a call in the steady state adds a reordering of names to it (`jit`
    sorts the keys of dictionaries, and names should come in the order of the program). Arguments and
    results that are no arrays are hidden from `jit` when it turns out that there are some.
    """
    names: dict[str, None] = {}
    found_static = {"arguments": False, "results": False}

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        args, kwargs = unprotect((args, kwargs))
        result, found = capture(function, args, kwargs)
        names.update(dict.fromkeys(found))
        if has_static_leaves((result, found)):
            found_static["results"] = True
            return protect((result, found))
        return result, found

    compiled = jax.jit(traced, static_argnums=static_argnums, static_argnames=static_argnames)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if found_static["arguments"]:
            args, kwargs = protect((args, kwargs))
        try:
            return compiled(*args, **kwargs)
        except TypeError:
            if found_static["arguments"] or not has_static_leaves((args, kwargs)):
                raise
        found_static["arguments"] = True
        return call(args, kwargs)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result, found = call(args, kwargs)
        if found_static["results"]:
            result, found = unprotect((result, found))
        return result, {name: found[name] for name in names if name in found}

    return wrapped

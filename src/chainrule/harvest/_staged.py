"""Functions that are traced, rewritten and compiled once per signature, then as fast as `jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from chainrule.harvest._static import has_static_leaves, protect, unprotect

__all__ = ["Rewrite", "compile_capture", "compile_rewrite"]

Rewrite = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Traces a function at arguments and runs what it makes of it."""


def compile_rewrite(
    function: Callable[..., Any],
    rewrite: Rewrite,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Any]:
    """`rewrite(function, args, kwargs)` as a function of the arguments, under one `jax.jit`.

    Arguments and results that are no arrays are hidden from `jit`, once it turns out that there are some.
    """
    hides_arguments = hides_results = False

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        nonlocal hides_results
        result = rewrite(function, *unprotect((args, kwargs)))
        if has_static_leaves(result):
            hides_results = True
            return protect(result)
        return result

    compiled = jax.jit(traced, static_argnums=static_argnums, static_argnames=static_argnames)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal hides_arguments
        if hides_arguments:
            args, kwargs = protect((args, kwargs))
        try:
            result = compiled(*args, **kwargs)
        except TypeError:
            if hides_arguments or not has_static_leaves((args, kwargs)):
                raise
            hides_arguments = True
            return wrapped(*args, **kwargs)
        return unprotect(result) if hides_results else result

    return wrapped


def compile_capture(
    function: Callable[..., Any], rewrite: Rewrite, **options: Any
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Like `compile_rewrite`, for a rewrite that gives a result and what was found inside, by name.

    `jit` sorts the keys of dictionaries; here the names come in the order of the program.
    """
    names: dict[str, None] = {}

    def noting_names(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        result, found = rewrite(function, args, kwargs)
        names.update(dict.fromkeys(found))
        return result, found

    compiled = compile_rewrite(function, noting_names, **options)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result, found = compiled(*args, **kwargs)
        return result, {name: found[name] for name in names if name in found}

    return wrapped

"""Functions that are traced, rewritten and compiled once per signature, then as fast as `jit`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from typing import Any

import jax

from chainrule.harvest._static import has_static_leaves, protect, unprotect

__all__ = ["Rewrite", "compile_capture", "compile_rewrite"]

Rewrite = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Traces a function at arguments and runs what it makes of it."""


def compile_rewrite(
    function: Callable[..., Any], rewrite: Rewrite, **options: Any
) -> Callable[..., Any]:
    """`rewrite(function, args, kwargs)` as a function of the arguments, under one `jax.jit`."""
    compiled = _Compiled(function, rewrite, **options)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return compiled.run(args, kwargs)

    return wrapped


def compile_capture(
    function: Callable[..., Any], rewrite: Rewrite, key: Hashable, **options: Any
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Like `compile_rewrite`, for a rewrite that gives a result and what was found inside, by name.

    `key` says which rewrite it is: as with `jax.jit`, capturing the same function again in the same way
    finds what was compiled before. `jit` sorts the keys of dictionaries; here the names come in the
    order of the program.
    """
    names, compiled = _remembered(function, rewrite, key, options)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result, found = compiled.run(args, kwargs)
        return result, {name: found[name] for name in names if name in found}

    return wrapped


class _Compiled:
    """A rewritten function under `jit`, which also takes and gives values that are no arrays.

    Such values are hidden from `jit`, once it turns out that there are some. The function is held weakly,
    so that what is remembered for it can go when it goes; whoever calls `run` holds it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rewrite: Rewrite,
        *,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self._hides_arguments = self._hides_results = False
        reference = _weakly(function)

        def traced(*args: Any, **kwargs: Any) -> Any:
            result = rewrite(reference(), *unprotect((args, kwargs)))
            if has_static_leaves(result):
                self._hides_results = True
                return protect(result)
            return result

        _look_like(traced, function)
        self._jitted = jax.jit(
            traced, static_argnums=static_argnums, static_argnames=static_argnames
        )

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""
        if self._hides_arguments:
            args, kwargs = protect((args, kwargs))
        try:
            result = self._jitted(*args, **kwargs)
        except TypeError:
            if self._hides_arguments or not has_static_leaves((args, kwargs)):
                raise
            self._hides_arguments = True
            return self.run(args, kwargs)
        return unprotect(result) if self._hides_results else result


def _weakly(function: Callable[..., Any]) -> Callable[[], Any]:
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


def _look_like(traced: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Name and signature for `jit`; not `functools.wraps`, which would hold the function."""
    traced.__name__ = getattr(function, "__name__", type(function).__name__)
    with contextlib.suppress(TypeError, ValueError):
        traced.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]


_Known = tuple[dict[str, None], _Compiled]
_KNOWN: MutableMapping[Any, dict[Hashable, _Known]] = weakref.WeakKeyDictionary()
"""What was compiled, by function; an entry goes with its function."""


def _remembered(
    function: Callable[..., Any], rewrite: Rewrite, key: Hashable, options: dict[str, Any]
) -> _Known:
    try:
        known = _KNOWN.setdefault(function, {})
    except TypeError:  # neither hashable nor weakly referable: this one is on its own
        known = {}
    whole = (key, *(_frozen(option) for option in options.values()))
    if whole not in known:
        names: dict[str, None] = {}

        def noting_names(*args: Any) -> tuple[Any, dict[str, Any]]:
            result, found = rewrite(*args)
            names.update(dict.fromkeys(found))
            return result, found

        known[whole] = names, _Compiled(function, noting_names, **options)
    return known[whole]


def _frozen(option: Any) -> Hashable:
    return option if option is None or isinstance(option, (int, str)) else tuple(option)

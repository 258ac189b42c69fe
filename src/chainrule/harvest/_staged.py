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

Rewrite = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Traces a function at arguments and runs what it makes of it."""


def compile_rewrite(
    function: Callable[..., Any], rewrite: Rewrite, **options: Any
) -> Callable[..., Any]:
    """`rewrite(function, args, kwargs)` as a function of the arguments, under one `jax.jit`."""
    return _Compiled(function, rewrite, **options).like(function)


def compile_capture(
    function: Callable[..., Any], rewrite: Rewrite, key: Hashable, **options: Any
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Like `compile_rewrite`, for a rewrite that gives a result and what was found inside, by name.

    `key` says which rewrite it is: as with `jax.jit`, capturing the same function again in the same way
    finds what was compiled before.
    """
    try:
        known = _KNOWN.setdefault(function, {})
    except TypeError:  # not hashable, or not weakly referable: this one is on its own
        known = {}
    whole = (key, *map(_frozen, options.values()))
    if whole not in known:
        known[whole] = _Capture(function, rewrite, **options)
    return known[whole].like(function)


class _Compiled:
    """A rewritten function under `jit`, which also takes and gives values that are no arrays.

    Such values are hidden from `jit`, once it turns out that there are some. The function is held weakly:
    `_KNOWN` maps functions to their compiled captures, and an entry whose value holds its key would never
    go. During a call the function is alive, because the wrapper that the user calls holds it.

    Attributes:
        call: the function to call with the arguments.
        finish: what is left to do with its output; `None` in the usual case.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rewrite: Rewrite,
        *,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
    ) -> None:
        reference = _weakly(function)

        def traced(*args: Any, **kwargs: Any) -> Any:
            output = rewrite(reference(), *unprotect((args, kwargs)))
            self._note(output)
            return protect(output)

        _look_like(traced, function)
        self._jitted = jax.jit(
            traced, static_argnums=static_argnums, static_argnames=static_argnames
        )
        self.call: Callable[..., Any] = self._jitted
        self.finish: Callable[[Any], Any] | None = None

    def like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function for the user. It runs at every call, so it does little."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                output = self.call(*args, **kwargs)
            except TypeError:
                if self.call is not self._jitted or not has_static_leaves((args, kwargs)):
                    raise
                self.call = self._protecting
                output = self.call(*args, **kwargs)
            return output if self.finish is None else self.finish(output)

        return wrapped

    def _protecting(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = protect((args, kwargs))
        return self._jitted(*args, **kwargs)

    def _note(self, output: Any) -> None:
        """Look at what came out of a trace, and decide what has to be done after each call."""
        if has_static_leaves(output):
            self.finish = unprotect


class _Capture(_Compiled):
    """A rewrite that finds things by name: they come in the order of the program.

    `jit` sorts the keys of dictionaries.
    """

    def __init__(self, function: Callable[..., Any], rewrite: Rewrite, **options: Any) -> None:
        super().__init__(function, rewrite, **options)
        self._names: dict[str, None] = {}

    def _note(self, output: Any) -> None:
        self._names.update(dict.fromkeys(output[1]))
        if has_static_leaves(output):
            self.finish = lambda output: self._order(unprotect(output))
        elif self.finish is None and list(self._names) != sorted(self._names):
            self.finish = self._order

    def _order(self, output: Any) -> Any:
        result, found = output
        return result, {name: found[name] for name in self._names if name in found}


_KNOWN: MutableMapping[Any, dict[Hashable, _Capture]] = weakref.WeakKeyDictionary()
"""What was compiled, by function; an entry goes with its function."""


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


def _frozen(option: Any) -> Hashable:
    return option if option is None or isinstance(option, (int, str)) else tuple(option)

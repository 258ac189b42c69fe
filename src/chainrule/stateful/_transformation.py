"""What all transformations are: callable objects around a function, usable as decorators and on methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from chainrule.stateful._call import name_of

__all__ = ["Transformation", "decorator"]


class Transformation:
    """A transformed function: positional arguments are pure values, keyword arguments are tracked.

    Used on a method of a module, the module itself is tracked.
    """

    def __init__(self, fun: Callable[..., Any], **options: Any) -> None:
        self._fun = fun
        self._options = options
        functools.update_wrapper(self, fun, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self._as_method, self=instance)

    @functools.cached_property
    def _as_method(self) -> Transformation:
        fun = self._fun

        @functools.wraps(fun)
        def method(*args: Any, **kwargs: Any) -> Any:
            module = kwargs.pop("self")
            if isinstance(fun, Transformation):  # tracks the module in its turn
                return fun.__get__(module)(*args, **kwargs)
            return fun(module, *args, **kwargs)

        signature = inspect.signature(fun)
        # Positions count what is passed by position, and the module is not.
        method.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values()][1:]
        )
        return type(self)(method, **self._options)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self._fun)})"


def decorator(
    transformation: Callable[..., Any], fun: Callable[..., Any] | None, **options: Any
) -> Any:
    """`f = transformation(f)`, `@transformation` and `@transformation(option=…)` alike."""
    if fun is None:
        return functools.partial(transformation, **options)
    return transformation(fun, **options)

"""`eval_shape`: what a function would return, without computing or changing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from chainrule.stateful._call import Call

__all__ = ["eval_shape"]


def eval_shape(fun: Callable[..., Any], /, *args: Any, **tracked: Any) -> Any:
    """The shapes and dtypes of a function's result. No parameter changes.

    Args:
        fun: the function.
        *args: its positional arguments, or `jax.ShapeDtypeStruct`s in their places.
        **tracked: its keyword arguments.
    """
    call = Call(tracked)
    result, _ = jax.eval_shape(call.pure(fun), call.values, *args)
    return call.attach(result)

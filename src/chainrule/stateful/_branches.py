"""Branches: `cond` and `switch`. Every branch gets and returns all tracked parameters.

JAX prunes what all branches pass through unchanged, so parameters that are only read cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from chainrule.stateful._call import Call
from chainrule.stateful._operators import unwrap
from chainrule.stateful._params import BaseParam
from chainrule.stateful._transformation import Transformation

__all__ = ["Cond", "Switch", "cond", "switch"]


class Switch(Transformation):
    """One of several functions, chosen by an index; see `switch`."""

    def __init__(self, branches: Sequence[Callable[..., Any]]) -> None:
        super().__init__(branches[0])
        self._branches = tuple(branches)

    def __call__(self, index: Any, /, *operands: Any, **kwargs: Any) -> Any:
        call = Call(kwargs)
        branches = [call.pure(branch, within="a branch") for branch in self._branches]
        result, values = self._choose(unwrap(index), branches, call.values, *operands)
        return call.finish(result, values)

    def _choose(self, index: Any, branches: list[Any], *operands: Any) -> Any:
        return jax.lax.switch(index, branches, *operands)


class Cond(Switch):
    """One of two functions, chosen by a truth value; see `cond`."""

    def __init__(self, true_fun: Callable[..., Any], false_fun: Callable[..., Any]) -> None:
        super().__init__((true_fun, false_fun))

    def _choose(self, index: Any, branches: list[Any], *operands: Any) -> Any:
        return jax.lax.cond(index, *branches, *operands)


def cond(pred: Any, /, *functions_and_operands: Any, **tracked: Any) -> Any:
    """Run one of two functions.

    `cond(pred, true_fun, false_fun, *operands, **tracked)` runs at once, as in JAX;
    `cond(true_fun, false_fun)` makes a function `(pred, *operands, **tracked)`.

    Args:
        pred: a scalar truth value.
        *functions_and_operands: `true_fun`, `false_fun`, and their positional arguments.
        **tracked: their keyword arguments.
    """
    if callable(pred) and not isinstance(pred, BaseParam):
        return Cond(pred, *functions_and_operands)
    true_fun, false_fun, *operands = functions_and_operands
    return Cond(true_fun, false_fun)(pred, *operands, **tracked)


def switch(index: Any, /, *branches_and_operands: Any, **tracked: Any) -> Any:
    """Run one of several functions.

    `switch(index, branches, *operands, **tracked)` runs at once, as in JAX; `switch(branches)` makes a
    function `(index, *operands, **tracked)`.

    Args:
        index: which one; clamped to the range, as in JAX.
        *branches_and_operands: a sequence of functions, and their positional arguments.
        **tracked: their keyword arguments.
    """
    if not branches_and_operands:
        return Switch(index)
    branches, *operands = branches_and_operands
    return Switch(branches)(index, *operands, **tracked)

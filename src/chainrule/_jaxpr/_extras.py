"""What leaves a rewritten program beside its outputs, and how loops combine it.

An `Extra` is a group of arrays on their way out of a program. Where a loop need not keep every iteration of
it, a `Fold` carries a state through the loop: `start` makes it from the abstract values of one iteration,
`step` takes one more iteration in, `finish` turns it into the loop's value. `count` is the number of
iterations taken in before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

Leaves = Sequence[Any]


@dataclass(frozen=True)
class Fold:
    """One way to combine iterations.

    Attributes:
        name: for messages.
        start: abstract leaves → state.
        step: state, leaves, count → state.
        finish: state, count → leaves.
        axes: how many axes the result has in front of those of one iteration.
    """

    name: str
    start: Callable[[Leaves], Leaves]
    step: Callable[[Leaves, Leaves, Any], Leaves]
    finish: Callable[[Leaves, Any], Leaves]
    axes: int = 0


def _zeros(avals: Leaves) -> Leaves:
    return [jnp.zeros(aval.shape, aval.dtype) for aval in avals]


def _zeros_to_add_to(avals: Leaves) -> Leaves:
    # Booleans and small integers are added as `jnp.sum` does, in the default integer type: as booleans,
    # True + True would be True, and 100 + 100 overflows int8.
    return _zeros([jax.eval_shape(jnp.sum, aval).update(shape=aval.shape) for aval in avals])


def _as_it_is(state: Leaves, count: Any) -> Leaves:
    return list(state)


def _elementwise(
    name: str,
    combine: Callable[[Any, Any], Any],
    start: Callable[[Leaves], Leaves] = _zeros,
    finish: Callable[[Leaves, Any], Leaves] = _as_it_is,
) -> Fold:
    def step(state: Leaves, leaves: Leaves, count: Any) -> Leaves:
        # The first iteration replaces the zeros: no neutral element is needed.
        pairs = [(old, jnp.asarray(new, old.dtype)) for old, new in zip(state, leaves, strict=True)]
        return [jnp.where(count == 0, new, combine(old, new)) for old, new in pairs]

    return Fold(name, start, step, finish)


def _divide(state: Leaves, count: Any) -> Leaves:
    number = jnp.maximum(count, 1)
    totals = [x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float) for x in state]
    return [total / number.astype(total.dtype) for total in totals]


FOLDS: dict[str, Fold] = {
    "last": Fold("last", _zeros, lambda state, leaves, count: list(leaves), _as_it_is),
    "sum": _elementwise("sum", jnp.add, _zeros_to_add_to),
    "mean": _elementwise("mean", jnp.add, _zeros_to_add_to, _divide),
    "max": _elementwise("max", jnp.maximum),
}


@functools.lru_cache
def ring(size: int) -> Fold:
    """Keep the last `size` iterations, oldest first; places that were never used stay zero."""

    def start(avals: Leaves) -> Leaves:
        return [jnp.zeros((size, *aval.shape), aval.dtype) for aval in avals]

    def step(state: Leaves, leaves: Leaves, count: Any) -> Leaves:
        pairs = zip(state, leaves, strict=True)
        return [buffer.at[count % size].set(leaf) for buffer, leaf in pairs]

    def finish(state: Leaves, count: Any) -> Leaves:
        oldest = jnp.where(count > size, count % size, 0)
        return [jnp.roll(buffer, -oldest, axis=0) for buffer in state]

    return Fold(f"ring of {size}", start, step, finish, axes=1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Extra:
    """Arrays that leave a program beside its outputs.

    Attributes:
        leaves: the arrays.
        label: what they are; carried along and compared, never looked into.
        fold: how a loop combines them; `None` stacks them where the number of iterations is known.
        open_fold: how a loop without a known number of iterations combines them when `fold` is `None`;
            `None` keeps the last.
        stacked: how many axes loops have put in front of the leaves.
        taken: whether the place they come from was reached, as a boolean array; `None`: always.
        count: how often it was reached inside `while` loops; `None` outside of them.
    """

    leaves: tuple[Any, ...]
    label: Any = field(metadata={"static": True})
    fold: Fold | None = field(default=None, metadata={"static": True})
    open_fold: Fold | None = field(default=None, metadata={"static": True})
    stacked: int = field(default=0, metadata={"static": True})
    taken: Any = None
    count: Any = None

    @property
    def loop_shape(self) -> tuple[int, ...]:
        """The lengths of the axes that loops have put in front."""
        return self.leaves[0].shape[: self.stacked] if self.leaves else ()

"""What leaves a rewritten program beside its outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from chainrule._jaxpr._evaluate import evaluate
from chainrule._jaxpr._folds import Fold
from chainrule._jaxpr._names import constants_first

if TYPE_CHECKING:
    from chainrule._jaxpr._rewrite import Rewriter


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


@dataclass(frozen=True)
class Staged:
    """A rewritten sub-program: outputs first, then the leaves of its extras."""

    program: ClosedJaxpr
    n_outputs: int
    extras_tree: Any

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Extra]]:
        """Separate what the program gives into its outputs and its extras."""
        outputs, leaves = list(values[: self.n_outputs]), values[self.n_outputs :]
        return outputs, jax.tree.unflatten(self.extras_tree, leaves)

    def run(self, operands: Sequence[Any]) -> tuple[list[Any], list[Extra]]:
        """The outputs and extras at operands."""
        return self.split(evaluate(self.program, operands))

    @functools.cached_property
    def opened(self) -> ClosedJaxpr:
        """The program with its captured constants as first inputs; one object, so it is lowered once."""
        return constants_first(self.program.jaxpr)

    @property
    def extras(self) -> list[Extra]:
        """The extras, with abstract values in place of arrays."""
        return self.split(self.program.out_avals)[1]


Binder = Callable[["Rewriter", JaxprEqn, list[Any], tuple[Any, ...]], tuple[list[Any], list[Extra]]]
"""Binds a higher-order equation again around rewritten sub-programs.

Takes the rewriter, the equation, its operands and the iteration numbers of the loops around it; gives the
equation's results and the extras of its sub-programs.
"""

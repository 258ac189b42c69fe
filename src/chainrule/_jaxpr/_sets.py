"""One set per element of an array: which numbers that element depends on.

`labels` has the array's shape and says which set each element has; `table` holds the sets, one per row, as a
sparse matrix of booleans. Elements that have the same set share a row, so that an operation that only moves
elements changes the labels alone, and a number that is copied to a million places is held once. Label 0 is
always the empty set.

Every operation first tells a `WorkLimit` how many numbers it touches; more than that are refused. It does
not depend on the clock: the same program is refused, or not, on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from chainrule._errors import CapabilityError


class WorkLimit:
    """A limit on numbers that are touched: about 20 ns each."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._done = 0.0

    def charge(self, amount: float) -> None:
        """Say that this many numbers are about to be touched.

        Raises:
            CapabilityError: that would be too many.
        """
        self._done += amount
        if self._done > self.limit:
            raise CapabilityError(
                "Where this Jacobian is non-zero was not looked for to the end: it takes more than "
                f"{self.limit:,.0f} operations on sets of inputs. Use method='jacrev' or 'jacfwd'.",
                code="no_pattern",
            )


@dataclass(frozen=True, eq=False)
class Sets:
    """One set of numbers per element of an array.

    Attributes:
        labels: of the array's shape, the row of each element's set.
        table: the sets. Row 0 is empty.
    """

    labels: np.ndarray
    table: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.labels.shape

    def moved(self, labels: np.ndarray) -> Sets:
        """The same sets at other places."""
        return Sets(labels, self.table)

    def equals(self, other: Sets) -> bool:
        """Whether every element has the same numbers in its set."""
        if self.labels is other.labels and self.table is other.table:
            return True
        own, its = self.per_element, other.per_element
        return own.nnz == its.nnz and (own != its).nnz == 0

    @property
    def sizes(self) -> np.ndarray:
        """How many numbers each set of the table has."""
        return np.diff(self.table.indptr)

    @property
    def entries(self) -> int:
        """How many numbers all elements have together."""
        return int(self.sizes[self.labels].sum())

    @property
    def per_element(self) -> Any:
        """One row per element."""
        return self.table[self.labels.ravel()]


class SetAlgebra:
    """Unions of sets of numbers below `width`, charged to a `WorkLimit`."""

    def __init__(self, width: int, work: WorkLimit) -> None:
        from scipy import sparse  # JAX needs it, too; few programs look for patterns

        self._sparse = sparse
        self._width = width
        self.work = work

    def singletons(self, shape: tuple[int, ...], first: int) -> Sets:
        """The element k of an array depends on the number `first` + k."""
        size = math.prod(shape)
        self.work.charge(size)
        starts = np.concatenate([[0], np.arange(size + 1)])
        columns = np.arange(first, first + size)
        return Sets(np.arange(1, size + 1).reshape(shape), self._table(columns, starts))

    def union(self, parts: Sequence[Sets]) -> Sets:
        """Element by element, of arrays of one shape."""
        return reduce(self._union_of_two, parts)

    def _union_of_two(self, a: Sets, b: Sets) -> Sets:
        if a.table is b.table and (a.labels is b.labels or np.array_equal(a.labels, b.labels)):
            return a
        rows_b = b.table.shape[0]
        self.work.charge(4 * a.labels.size)
        # Each pair of sets is united once, however many elements have it. The pair (0, 0) gets the number 0,
        # so the label 0 stays that of the empty set.
        pairs, labels = _numbered(a.labels.astype(np.int64) * rows_b + b.labels)
        left, right = np.divmod(pairs, rows_b)
        self.work.charge(a.sizes[left].sum() + b.sizes[right].sum())
        return Sets(labels, a.table[left] + b.table[right])

    def over_axes(self, sets: Sets, axes: Sequence[int], *, keep: bool = False) -> Sets:
        """The union along axes, which disappear or, with `keep`, keep their length."""
        axes = tuple(axis % max(1, len(sets.shape)) for axis in axes)
        if not axes:
            return sets
        kept = [axis for axis in range(len(sets.shape)) if axis not in axes]
        outer = tuple(sets.shape[axis] for axis in kept)
        labels = sets.labels.transpose(*kept, *axes).reshape(math.prod(outer), -1)
        groups = np.broadcast_to(np.arange(labels.shape[0])[:, None], labels.shape)
        found = self.of_groups(groups.ravel(), labels.ravel(), labels.shape[0], sets.table)
        found = found.moved(found.labels.reshape(outer))
        if not keep:
            return found
        spread = np.expand_dims(found.labels, tuple(sorted(axes)))
        return found.moved(np.broadcast_to(spread, sets.shape))

    def of_groups(self, groups: np.ndarray, labels: np.ndarray, count: int, table: Any) -> Sets:
        """For every number below `count` the union of the sets that `groups` gives to it; a vector."""
        self.work.charge(2 * labels.size)
        sizes = np.diff(table.indptr)
        present = sizes[labels] > 0
        groups, labels = groups[present] + 1, labels[present]
        self.work.charge(2 * sizes[labels].sum())
        members = self._sparse.csr_array(
            (np.ones(labels.size, bool), (groups, labels)), shape=(count + 1, table.shape[0])
        )
        return Sets(np.arange(1, count + 1), members @ table)

    def together(self, parts: Sequence[Sets]) -> tuple[list[np.ndarray], Any]:
        """The labels of several arrays in one table."""
        if len(parts) == 1:
            return [parts[0].labels], parts[0].table
        tables = [part.table for part in parts]
        self.work.charge(sum(table.nnz for table in tables) + sum(p.labels.size for p in parts))
        starts = np.cumsum([0, *(table.shape[0] for table in tables)])
        # The empty sets of the other tables stay, unused: label 0 is the one that counts.
        labels = [
            np.where(part.labels == 0, 0, part.labels + start)
            for part, start in zip(parts, starts, strict=False)
        ]
        return labels, self._sparse.vstack(tables, format="csr")

    def everything(self, parts: Sequence[Sets], shape: tuple[int, ...]) -> Sets:
        """Every element of an array depends on all that any element of the parts does."""
        used = [np.unique(part.labels) for part in parts]
        self.work.charge(2 * sum(part.labels.size for part in parts))
        self.work.charge(sum(part.sizes[u].sum() for part, u in zip(parts, used, strict=True)))
        columns = np.unique(
            np.concatenate([p.table[u].indices for p, u in zip(parts, used, strict=True)])
        )
        table = self._table(columns, np.array([0, 0, columns.size]))
        return Sets(np.broadcast_to(np.int64(1), shape), table)

    def _table(self, columns: np.ndarray, starts: np.ndarray) -> Any:
        shape = (starts.size - 1, self._width)
        return self._sparse.csr_array((np.ones(columns.size, bool), columns, starts), shape=shape)


def _numbered(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different keys, 0 first, and for every element which of them it is."""
    different, numbers = np.unique(np.append(keys.ravel(), 0), return_inverse=True)
    return different, numbers[:-1].reshape(keys.shape)

"""Where a matrix may be non-zero, and which of its columns can share one product.

Two columns without a common row can be perturbed together: each row then changes by one of them only.
Choosing the groups is colouring the columns' intersection graph; greedily, in natural order, a band of
width w needs w groups, which is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Pattern:
    """The places of a matrix that may be non-zero, ordered by column, then row.

    Attributes:
        rows: row of each place.
        columns: column of each place, not decreasing.
        shape: of the matrix.
    """

    rows: np.ndarray
    columns: np.ndarray
    shape: tuple[int, int]

    @classmethod
    def at(cls, rows: Any, columns: Any, shape: tuple[int, int]) -> Pattern:
        """A pattern of places in any order, possibly repeated."""
        flat = np.unique(np.asarray(columns, np.int64) * shape[0] + np.asarray(rows, np.int64))
        columns, rows = np.divmod(flat, max(shape[0], 1))
        return cls(rows, columns, shape)

    @property
    def transpose(self) -> Pattern:
        """The pattern of the transposed matrix."""
        return Pattern.at(self.columns, self.rows, self.shape[::-1])

    @cached_property
    def column_starts(self) -> np.ndarray:
        """Where each column's places begin, and the end."""
        return np.searchsorted(self.columns, np.arange(self.shape[1] + 1))

    @cached_property
    def column_groups(self) -> list[np.ndarray]:
        """Columns that can be perturbed together. Columns without a place are in no group."""
        starts = self.column_starts
        supports = [self.rows[a:b] for a, b in pairwise(starts)]
        return color_groups(supports, self.shape[0])

    def entries_in(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of all places in some columns."""
        starts, ends = self.column_starts[columns], self.column_starts[columns + 1]
        counts = ends - starts
        # Place k of the result belongs to the column whose places begin at s here and at p in the result: it
        # is place s + (k - p) of the pattern. `first` is s - p, repeated for each place of the column.
        first = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        return self.rows[first + np.arange(counts.sum())], np.repeat(columns, counts)


def color_groups(supports: list[np.ndarray], row_count: int) -> list[np.ndarray]:
    """Indices of supports (sets of rows), grouped so that no two in a group share a row.

    Greedy: each support goes to the first group in which all its rows are free. Empty supports go nowhere.
    """
    # One integer per row, its bits the groups that already touch the row.
    taken = [0] * row_count
    members: list[list[int]] = []
    for index, support in enumerate(supports):
        rows = support.tolist()
        if not rows:
            continue
        occupied = reduce(or_, [taken[row] for row in rows])
        # The lowest bit that is 0: adding one turns the ones below it into zeros, and it into one.
        lowest_free = ~occupied & (occupied + 1)
        for row in rows:
            taken[row] |= lowest_free
        group = lowest_free.bit_length() - 1
        if group == len(members):
            members.append([])
        members[group].append(index)
    return [np.array(group) for group in members]

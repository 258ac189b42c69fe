"""Where a Jacobian may be non-zero, and which of its columns can share an evaluation.

Two columns that touch no common row can be perturbed together: each row then tells which column moved it.
Choosing the groups is colouring the columns' intersection graph; greedily, in natural order, a band of
width w needs w groups, which is optimal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np

from chainrule._errors import InputError
from chainrule.runtime._codec import SparseArray
from chainrule.runtime._derivatives._layout import Layout

__all__ = ["Pattern", "color_groups", "read_pattern"]


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
        lowest_free = ~occupied & (occupied + 1)
        for row in rows:
            taken[row] |= lowest_free
        group = lowest_free.bit_length() - 1
        if group == len(members):
            members.append([])
        members[group].append(index)
    return [np.array(group) for group in members]


def read_pattern(sparsity: Any, inputs: Layout, output_paths: tuple[str, ...]) -> Pattern:
    """The pattern that a user described.

    Args:
        sparsity: `{output path: {input path: block}}`, or just the block where there is one pair of
            paths. A block is a boolean array of shape output shape + input shape (or flattened to a
            matrix), a `SparseArray`, a SciPy sparse matrix of flat positions, or `None` for "anywhere"
            where another block of the same output says how many elements that output has.
        inputs: the layout of the columns.
        output_paths: the row paths, in order.

    Raises:
        InputError: a block is missing or its shape does not fit.
    """
    if not isinstance(sparsity, Mapping):
        sparsity = {output_paths[0]: {inputs.paths[0]: sparsity}}
    rows, columns, start = [np.zeros(0, int)], [np.zeros(0, int)], 0
    for out_path in output_paths:
        blocks = {in_path: _block(sparsity, out_path, in_path) for in_path in inputs.paths}
        height = _height(blocks, inputs, out_path)
        for in_path, part in inputs.slices().items():
            r, c = _places(blocks[in_path], (height, part.stop - part.start), out_path, in_path)
            rows.append(r + start)
            columns.append(c + part.start)
        start += height
    return Pattern.at(np.concatenate(rows), np.concatenate(columns), (start, inputs.size))


def _block(sparsity: Any, out_path: str, in_path: str) -> Any:
    try:
        return sparsity[out_path][in_path]
    except (LookupError, TypeError):
        raise InputError(
            f"sparsity has no block for output {out_path!r} and input {in_path!r}. Give every pair; "
            "None stands for a block without structure.",
            code="bad_sparsity",
            path=in_path,
        ) from None


def _height(blocks: Mapping[str, Any], inputs: Layout, out_path: str) -> int:
    for in_path, part in inputs.slices().items():
        if blocks[in_path] is not None:
            width = max(part.stop - part.start, 1)
            return int(np.prod(blocks[in_path].shape, dtype=np.int64)) // width
    raise InputError(
        f"sparsity says nothing about output {out_path!r}: at least one of its blocks must not be None.",
        code="bad_sparsity",
        path=out_path,
    )


def _places(
    block: Any, shape: tuple[int, int], out_path: str, in_path: str
) -> tuple[np.ndarray, np.ndarray]:
    if block is None:
        return np.divmod(np.arange(shape[0] * shape[1]), max(shape[1], 1))
    if np.prod(block.shape, dtype=np.int64) != shape[0] * shape[1]:
        raise InputError(
            f"The sparsity block of output {out_path!r} and input {in_path!r} has shape "
            f"{tuple(block.shape)}; expected one row per element of the output and one column per element "
            f"of the input, which has {shape[1]}.",
            code="bad_sparsity",
            path=in_path,
        )
    if isinstance(block, SparseArray):
        flat = np.ravel_multi_index(tuple(block.indices.T), block.shape)
        return np.divmod(flat, max(shape[1], 1))
    if hasattr(block, "tocoo"):
        coo = block.tocoo()
        return np.asarray(coo.row), np.asarray(coo.col)
    rows, columns = np.nonzero(np.asarray(block).reshape(shape))
    return rows, columns

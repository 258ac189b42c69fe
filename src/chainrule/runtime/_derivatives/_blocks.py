"""From matrix entries to the nested blocks that a Jacobian endpoint returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._codec import SparseArray
from chainrule.runtime._derivatives._layout import Layout


@dataclass(frozen=True)
class Entries:
    """Some entries of a matrix: `matrix[rows, columns] = values`.

    A whole column has `rows = slice(None)` and an integer `columns`; a whole row the other way round.
    """

    rows: np.ndarray | slice | int
    columns: np.ndarray | slice | int
    values: np.ndarray

    def add_transposed(self, cotangent: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """`gradient + cotangent @ matrix` for these entries; `gradient` is reused where it can be."""
        products = cotangent[self.rows] * self.values
        gradient = gradient.astype(np.result_type(gradient, products), copy=False)
        if isinstance(self.columns, np.ndarray):
            np.add.at(gradient, self.columns, products)
        else:
            gradient[self.columns] += products.sum()
        return gradient


def dense_blocks(
    entries: Iterable[Entries], rows: Callable[[], Layout], columns: Layout
) -> dict[str, dict[str, Any]]:
    """Collect entries into arrays.

    Args:
        entries: each place of the matrix at most once; places that are missing are zero.
        rows: the layout of the rows, asked for only once the first entries have come.
        columns: the layout of the columns.
    """
    matrix: np.ndarray | None = None
    for entry in entries:
        if matrix is None:
            matrix = np.zeros((rows().size, columns.size), entry.values.dtype)
        matrix[entry.rows, entry.columns] = entry.values
    if matrix is None:
        matrix = np.zeros((rows().size, columns.size))
    return rows().split_matrix(matrix, columns)


def sparse_blocks(
    entries: Iterable[Entries], rows: Callable[[], Layout], columns: Layout
) -> dict[str, dict[str, Any]]:
    """Collect entries, given by index arrays, into one `SparseArray` per block; arguments as above."""
    found = list(entries)
    r = np.concatenate([np.zeros(0, np.int64), *(entry.rows for entry in found)])
    c = np.concatenate([np.zeros(0, np.int64), *(entry.columns for entry in found)])
    values = np.concatenate([entry.values for entry in found]) if found else np.zeros(0)
    row_layout = rows()
    return {
        out_path: {
            in_path: _sparse_block(r, c, values, (height, out_shape), (width, in_shape))
            for (in_path, width), in_shape in zip(
                columns.slices().items(), columns.shapes, strict=True
            )
        }
        for (out_path, height), out_shape in zip(
            row_layout.slices().items(), row_layout.shapes, strict=True
        )
    }


def _sparse_block(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    height: tuple[slice, tuple[int, ...]],
    width: tuple[slice, tuple[int, ...]],
) -> Any:
    (r, out_shape), (c, in_shape) = height, width
    here = (rows >= r.start) & (rows < r.stop) & (columns >= c.start) & (columns < c.stop)
    shape = out_shape + in_shape
    flat = (rows[here] - r.start) * math.prod(in_shape) + columns[here] - c.start
    axes = np.unravel_index(flat, shape) if shape else ()
    indices = np.stack(axes, axis=-1) if axes else np.zeros((flat.size, 0), np.int64)
    return SparseArray(shape, indices, values[here])

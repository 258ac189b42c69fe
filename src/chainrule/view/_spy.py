"""Where the entries of a Jacobian are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from chainrule._errors import InputError
from chainrule.elimination import StructuredJacobian
from chainrule.view._picture import Cells, Drawing, Group, Label, Picture, Rectangle, Shape

_SIDE = 240.0
_THINNEST = 36.0
_MOST_CELLS = 120
_PER_ROW = 4
_LEVELS = 4
_INK = "#4f46e5"


@dataclass(frozen=True)
class SpyBlock:
    """One matrix of the picture.

    Attributes:
        name: where the block is in the tree of blocks; empty for a single one.
        shape: rows (entries of the output) and columns (entries of the input).
        rows, columns: places of the entries that are there, each once.
    """

    name: str
    shape: tuple[int, int]
    rows: np.ndarray = field(repr=False)
    columns: np.ndarray = field(repr=False)

    @property
    def count(self) -> int:
        """How many entries are there."""
        return len(self.rows)


@dataclass(frozen=True, repr=False)
class Spy(Picture):
    """The pattern of one Jacobian block or of several; a notebook shows it, `.save("x.svg")` keeps it."""

    blocks: tuple[SpyBlock, ...]

    def __repr__(self) -> str:
        return f"<Spy {'; '.join(map(_caption, self.blocks))}>"

    def drawing(self) -> Drawing:
        """One panel per block; a cell of a large block is the darker the fuller it is."""
        panels = []
        x = y = right = 16.0
        tallest = 0.0
        for k, block in enumerate(self.blocks):
            if k and k % _PER_ROW == 0:
                x, y, tallest = 16.0, y + tallest, 0.0
            width, height = _panel_size(block.shape)
            panels.append(Group(tuple(_panel(block, width, height)), (x, y + 20)))
            x += max(width, _SIDE) + 24
            right, tallest = max(right, x), max(tallest, height + 52)
        return Drawing(tuple(panels), right, y + tallest + 8, "Entries of a Jacobian")


def spy(jacobian: Any, *, output_axes: int | None = None) -> Spy:
    """Draw where a Jacobian has entries.

    Args:
        jacobian: a `StructuredJacobian`, an array, a `BCOO` or `scipy.sparse` matrix, or a tree of them, as
            `chainrule.elimination.jacobian` and `jax.jacrev` return them. Of an array, the entries that
            are not zero are drawn; of the others, those that are stored.
        output_axes: how many leading axes of an array belong to the output. Not needed for matrices, and for
            vectors, which are gradients.

    Raises:
        InputError: an array whose axes could belong to either side.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.elimination import jacobian
        >>> from chainrule import view
        >>> picture = view.spy(jacobian(lambda x: x[1:] - x[:-1], sparse=True)(jnp.arange(4.0)))
        >>> picture.blocks[0].shape, picture.blocks[0].count
        ((3, 4), 6)
    """
    leaves = jax.tree_util.tree_leaves_with_path(jacobian, is_leaf=_is_matrix)
    return Spy(tuple(_block(jax.tree_util.keystr(p), leaf, output_axes) for p, leaf in leaves))


def _is_matrix(node: Any) -> bool:
    return isinstance(node, StructuredJacobian) or hasattr(node, "todense")


def _block(name: str, leaf: Any, output_axes: int | None) -> SpyBlock:
    if isinstance(leaf, StructuredJacobian):
        rows, columns = leaf.coordinates()
        shape = math.prod(leaf.out_shape), math.prod(leaf.in_shape)
    elif hasattr(leaf, "tocoo"):
        entries = leaf.tocoo()
        rows, columns, shape = entries.row, entries.col, leaf.shape
    elif hasattr(leaf, "indices") and hasattr(leaf, "todense"):
        shape = leaf.shape
        indices = np.asarray(leaf.indices)
        # JAX pads with indices that lie just outside the shape; such entries do not exist.
        rows, columns = indices[(indices < np.array(shape)).all(axis=-1)].T
    else:
        matrix = _as_matrix(np.asarray(leaf), output_axes, name)
        rows, columns = np.nonzero(matrix)
        shape = matrix.shape
    # Terms of a structure may overlap; a place is drawn and counted once.
    places = np.unique(np.asarray(rows, np.int64) * shape[1] + np.asarray(columns, np.int64))
    return SpyBlock(name, (int(shape[0]), int(shape[1])), *np.divmod(places, max(1, shape[1])))


def _as_matrix(array: np.ndarray, output_axes: int | None, name: str) -> np.ndarray:
    split = max(0, array.ndim - 1) if output_axes is None else output_axes
    if output_axes is None and array.ndim > 2:
        where = f" at {name}" if name else ""
        raise InputError(
            f"A Jacobian{where} has {array.ndim} axes, {list(array.shape)}, of which some belong to the "
            "output and some to the input. Say how many are the output's: `spy(…, output_axes=1)`.",
            code="ambiguous_axes",
        )
    return array.reshape(math.prod(array.shape[:split]), math.prod(array.shape[split:]))


def _panel_size(shape: tuple[int, int]) -> tuple[float, float]:
    scale = _SIDE / max(1, *shape)
    return max(_THINNEST, shape[1] * scale), max(_THINNEST, shape[0] * scale)


def _caption(block: SpyBlock) -> str:
    rows, columns = block.shape
    return f"{rows} × {columns}, {block.count} of {rows * columns} entries"


def _panel(block: SpyBlock, width: float, height: float) -> Iterator[Shape]:
    yield Label(block.name, (0, -10), starts_here=True, is_strong=True)
    yield Rectangle((width / 2, height / 2), (width, height), "#f9fafb", "#9ca3af", radius=0)
    yield from _cells(block, width, height)
    yield Label(_caption(block), (0, height + 14), starts_here=True, is_faint=True)


def _cells(block: SpyBlock, width: float, height: float) -> Iterator[Cells]:
    """One shape per shade; neighbours in a row are one rectangle."""
    filled = _fill(block)
    if filled.size == 0:
        return
    cell_width, cell_height = width / filled.shape[1], height / filled.shape[0]
    shades = np.ceil(filled * _LEVELS).astype(int)
    for shade in range(1, _LEVELS + 1):
        cells = tuple(
            (start * cell_width, row * cell_height, (end - start) * cell_width, cell_height)
            for row, start, end in _runs(shades == shade)
        )
        if cells:
            yield Cells(cells, _INK, 0.3 + 0.7 * shade / _LEVELS)


def _fill(block: SpyBlock) -> np.ndarray:
    """How full each cell of the drawing is, between 0 and 1."""
    cells = tuple(min(n, _MOST_CELLS) for n in block.shape)
    filled = np.zeros(cells)
    if block.count:
        places = [
            where * n // length
            for where, n, length in zip(
                (block.rows, block.columns), cells, block.shape, strict=True
            )
        ]
        np.add.at(filled, tuple(places), 1.0)
        # Cells hold different numbers of rows and columns where their number does not divide the matrix.
        held = [
            np.bincount(np.arange(length) * n // length)
            for n, length in zip(cells, block.shape, strict=True)
        ]
        filled /= np.outer(*held)
    return filled


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(row, first column, column after the last) of every run of true cells in a row."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    for (row, start), (_, end) in zip(starts, ends, strict=True):
        yield int(row), int(start), int(end)

"""Sites whose Jacobian is sparse: a few products give all of it.

Columns that have no row in common can be asked for together: J (e_1 + e_4) has column 1 and column 4, each at
its own rows. So a product is asked for each *colour*, a group of such columns; a tridiagonal Jacobian of any
size has three. Rows and VJPs likewise.

Where the entries are is said by the author of a component (`sparsity`), or by the call: the cases of a `vmap`
do not depend on each other. What comes back keeps its structure, and is eliminated as that of JAX is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import Dependence
from chainrule._lru_cache import LRUCache
from chainrule._patterns import Pattern
from chainrule.elimination._blocks import Block
from chainrule.elimination._eliminate import BlockPlace
from chainrule.elimination._planning._prices import Way, is_backwards
from chainrule.elimination._structure import (
    Axis,
    Structure,
    Table,
    Term,
    canonical_term,
    dense_term,
    structure_of,
    zero_structure,
)
from chainrule.elimination._sweeps import Colouring, coloured

_MANY_ENTRIES = 4_000_000
"""Jacobians that may have more entries than this are not coloured."""
_MANY_DIAGONALS = 16
"""A pattern of no more diagonals than this is kept as diagonals, which stay diagonals in products."""


@dataclass(frozen=True, eq=False)
class Compression:
    """How to get a sparse Jacobian from few products.

    Attributes:
        results: shapes, by position.
        operands: shapes and dtypes, by position.
        structures: of the blocks.
        columns: the colours of the columns.
        rows: the colours of the rows.
    """

    results: Mapping[int, Any]
    operands: Mapping[int, Any]
    structures: Mapping[BlockPlace, Structure]
    columns: Colouring
    rows: Colouring

    def seeds(self, way: Way) -> dict[int, Any]:
        """The vectors of all products: for every colour, ones at the elements that have it."""
        colouring, sides = self._of(way)
        ones = np.arange(colouring.count)[:, None] == colouring.colours
        starts = _starts(sides)
        return {
            position: jnp.asarray(
                ones[:, starts[position] : starts[position] + aval.size], aval.dtype
            ).reshape(colouring.count, *aval.shape)
            for position, aval in sides.items()
        }

    def blocks(self, way: Way, products: Mapping[int, Any]) -> dict[BlockPlace, Block]:
        """The Jacobian from the products, which are by position of the other side."""
        colouring, sides = self._of(way)
        starts = _starts(sides)
        found = {}
        for (result, operand), structure in self.structures.items():
            asked, answered = (result, operand) if is_backwards(way) else (operand, result)
            flat = products[answered].reshape(colouring.count, -1)
            colours = colouring.colours[starts[asked] :]
            values = []
            for term in structure.terms:
                # Columns: the product of colour c is Σ J[:, k] over the k of that colour, of which one at
                # most has an entry in row r. So J[r, k] = product[colour of k][r]; for rows the same with Jᵀ.
                rows, columns = term.flat_positions()
                here, there = (rows, columns) if is_backwards(way) else (columns, rows)
                values.append(flat[colours[here], there])
            found[result, operand] = Block(structure, tuple(values))
        return found

    def _of(self, way: Way) -> tuple[Colouring, Mapping[int, Any]]:
        return (self.rows, self.results) if is_backwards(way) else (self.columns, self.operands)


def _starts(sides: Mapping[int, Any]) -> dict[int, int]:
    """Where the elements of every array begin, if all are put one after the other."""
    return dict(
        zip(sides, accumulate((each.size for each in sides.values()), initial=0), strict=False)
    )


def compress(
    results: Mapping[int, Any],
    operands: Mapping[int, Any],
    dependence: Callable[[int, int], Dependence | None],
) -> Compression | None:
    """How to get the Jacobian of a site from few products; `None` where that takes no fewer.

    Args:
        results: shape and dtype of those that are differentiated, by position.
        operands: of those that they are differentiated by.
        dependence: of a result on an operand, where it is known.
    """
    known = {(r, o): dependence(r, o) for r in results for o in operands}
    if all(each is None or each == Dependence() for each in known.values()):
        return None
    structures = {
        (r, o): _structure(each, results[r].shape, operands[o].shape)
        for (r, o), each in known.items()
    }
    if sum(each.entries for each in structures.values()) > _MANY_ENTRIES:
        return None
    columns, rows = _colourings(structures, results, operands)
    if columns.count >= columns.colours.size and rows.count >= rows.colours.size:
        return None
    return Compression(results, operands, structures, columns, rows)


# A function outside of `jit` is traced with every call; the colours of its sites stay the same.
_known: LRUCache[tuple[Any, ...], tuple[Colouring, Colouring]] = LRUCache(32)


def _colourings(
    structures: Mapping[BlockPlace, Structure],
    results: Mapping[int, Any],
    operands: Mapping[int, Any],
) -> tuple[Colouring, Colouring]:
    """The colours of the columns and of the rows of a site's Jacobian."""
    key = tuple(structures.items())  # equal structures are the same object
    found = _known.get(key)
    if found is None:
        pattern = _pattern(structures, results, operands)
        found = coloured(pattern, reverse=False), coloured(pattern, reverse=True)
        _known.put(key, found)
    return found


def _pattern(
    structures: Mapping[BlockPlace, Structure],
    results: Mapping[int, Any],
    operands: Mapping[int, Any],
) -> Pattern:
    first_row, first_column = _starts(results), _starts(operands)
    rows, columns = [np.zeros(0, int)], [np.zeros(0, int)]
    for (result, operand), structure in structures.items():
        for term in structure.terms:
            row, column = term.flat_positions()
            rows.append(row.ravel() + first_row[result])
            columns.append(column.ravel() + first_column[operand])
    height, width = (sum(each.size for each in side.values()) for side in (results, operands))
    return Pattern.at(np.concatenate(rows), np.concatenate(columns), (height, width))


def _structure(
    known: Dependence | None, out_shape: tuple[int, ...], in_shape: tuple[int, ...]
) -> Structure:
    """The structure of a block: cases share an axis, and within a case there is the pattern."""
    if known is None:
        return structure_of([dense_term(out_shape, in_shape)])
    cases = known.shared_axes
    if known.pattern is None:
        parts = [_dense_part(out_shape, in_shape, cases)]
    else:
        parts = [
            _placed_part(rows, columns, out_shape, in_shape, cases)
            for rows, columns in _diagonals(known.pattern)
        ]
    return structure_of(parts) if parts else zero_structure(out_shape, in_shape)


def _dense_part(out_shape: tuple[int, ...], in_shape: tuple[int, ...], cases: int) -> Term:
    """Blocks along the diagonal: the axes of the cases share their variables, all others have their own."""
    sizes = dict(enumerate((*out_shape, *in_shape[cases:])))
    out_axes = [Axis.of(v) for v in range(len(out_shape))]
    own = [Axis.of(len(out_shape) + k) for k in range(len(in_shape) - cases)]
    return canonical_term(
        out_shape, in_shape, sizes, out_axes, [*out_axes[:cases], *own], tuple(sizes), valued=True
    )[0]


def _placed_part(
    rows: np.ndarray,
    columns: np.ndarray,
    out_shape: tuple[int, ...],
    in_shape: tuple[int, ...],
    cases: int,
) -> Term:
    """Entries at places, the same ones in every case: one more variable walks them."""
    shared, walker = [Axis.of(v) for v in range(cases)], cases
    sizes = dict(enumerate((*out_shape[:cases], rows.size)))

    def axes(places: np.ndarray, shape: Sequence[int]) -> list[Axis]:
        indices = np.unravel_index(places, tuple(shape)) if shape else ()
        return [*shared, *(Axis.sum_of(0, [(walker, Table(each))]) for each in indices)]

    return canonical_term(
        out_shape, in_shape, sizes,
        axes(rows, out_shape[cases:]), axes(columns, in_shape[cases:]), tuple(sizes), valued=True,
    )[0]  # fmt: skip


def _diagonals(pattern: Pattern) -> list[tuple[np.ndarray, np.ndarray]]:
    """The places of a pattern by diagonals, or all together where these are many."""
    offsets = pattern.columns - pattern.rows
    distinct = np.unique(offsets)
    if distinct.size > _MANY_DIAGONALS:
        return [(pattern.rows, pattern.columns)]
    return [(pattern.rows[offsets == d], pattern.columns[offsets == d]) for d in distinct]

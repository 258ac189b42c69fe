"""Which elements of an output of a component depend on which elements of an input, as its author declares it.

    sparsity = {"y": {"x": "diagonal"}}                     y[i] depends on x[i] alone
    sparsity = {"y": {"x": {"lower": 1, "upper": 2}}}       a band: y[i] depends on x[i-1], …, x[i+2]
    sparsity = {"y": {"x": matrix}}                         where a matrix is not zero, or true

Elements are counted in the flat order of the arrays. A matrix is a boolean array of shape output + input (or
flattened to rows and columns), a `SparseArray` or a SciPy sparse matrix. A pair that is left out, or `None`,
may depend anywhere.

Read from an author, a declaration is plain data (`Sparsity`), which travels in the OpenAPI document: a matrix
is `{"places": flat positions, "of": number of elements}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chainrule._codec import SparseArray
from chainrule._patterns import Pattern
from chainrule._trees import is_arraylike

Sparsity = Mapping[str, Mapping[str, Any]]
"""Output path → input path → `"diagonal"`, a band or places."""

DIAGONAL = "diagonal"
BAND = ("lower", "upper")
_EXPECTED = (
    '"diagonal", a band such as {"lower": 1, "upper": 1}, a boolean array of shape output + input, or a '
    "SciPy sparse matrix"
)


def read_sparsity(declared: Any) -> dict[str, dict[str, Any]]:
    """A declaration as plain data.

    Raises:
        ValueError: it is not a sparsity pattern; with what was expected and found, for a message.
    """
    return {
        output: {given: _as_plain(block) for given, block in row.items()}
        for output, row in read_blocks(declared).items()
    }


def read_blocks(declared: Any) -> dict[str, dict[str, Any]]:
    """The same, with the places of a matrix as an array.

    Raises:
        ValueError: as in `read_sparsity`.
    """
    if not isinstance(declared, Mapping) or not all(
        isinstance(row, Mapping) for row in declared.values()
    ):
        raise ValueError(
            f"expected {{output path: {{input path: block}}}}, a block being {_EXPECTED}; found "
            f"{type(declared).__name__}"
        )
    return {
        output: {
            given: _read_block(block, output, given)
            for given, block in row.items()
            if block is not None
        }
        for output, row in declared.items()
    }


def is_block(declared: Any) -> bool:
    """Whether a declaration is one block alone, rather than blocks by the paths of outputs and inputs."""
    return not isinstance(declared, Mapping) or not declared.keys().isdisjoint(BAND)


def _as_plain(block: Any) -> Any:
    if isinstance(block, str) or "places" not in block:
        return block
    return {**block, "places": np.asarray(block["places"]).tolist()}


def _read_block(block: Any, output: str, given: str) -> Any:
    if isinstance(block, str) and block == DIAGONAL:
        return block
    if isinstance(block, Mapping) and (_is_band(block) or block.keys() == {"places", "of"}):
        return dict(block)
    if hasattr(block, "tocoo"):
        entries = block.tocoo()
        places = np.asarray(entries.row, np.int64) * block.shape[1] + entries.col
        return {"places": np.unique(places), "of": int(np.prod(block.shape))}
    if isinstance(block, SparseArray):
        places = np.ravel_multi_index(tuple(block.indices.T), block.shape)
        return {"places": np.unique(places), "of": int(np.prod(block.shape))}
    if is_arraylike(block) and np.asarray(block).dtype.kind in "biuf":
        return {"places": np.flatnonzero(block), "of": int(np.prod(block.shape))}
    raise ValueError(f"{output!r} by {given!r}: expected {_EXPECTED}; found {block!r:.60}")


def _is_band(block: Mapping[str, Any]) -> bool:
    return block.keys() == set(BAND) and all(
        isinstance(width, int) and not isinstance(width, bool) and width >= 0
        for width in block.values()
    )


def pattern_of(block: Any, rows: int, columns: int) -> Pattern:
    """The places of a block of some size.

    Raises:
        ValueError: it belongs to a matrix of another size.
    """
    if isinstance(block, str):
        if rows != columns:
            raise ValueError(
                f"a diagonal needs as many rows as columns; found {rows} and {columns}"
            )
        return Pattern.at(np.arange(rows), np.arange(rows), (rows, columns))
    if "places" not in block:
        offsets = np.arange(-block["lower"], block["upper"] + 1)
        row = np.repeat(np.arange(rows), offsets.size)
        column = row + np.tile(offsets, rows)
        inside = (column >= 0) & (column < columns)
        return Pattern.at(row[inside], column[inside], (rows, columns))
    if block["of"] != rows * columns:
        raise ValueError(
            f"its places are those of a matrix of {block['of']} elements; found {rows} × {columns}"
        )
    return Pattern.at(*np.divmod(np.asarray(block["places"], np.int64), columns), (rows, columns))

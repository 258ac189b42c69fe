"""Positions along an axis as functions of loop variables.

Vocabulary
    variable   an integer that names a loop; the loop runs from 0 to its size - 1.
    weight     what a variable adds to a position: a stride (`int`), or a `Table` (one addend per index).
    axis       `offset + Σ weight(variable)`: where, along one axis of an array, a loop iteration lands.

A slice is a stride with an offset, a reshape is several strides, a permutation or a gather with known
indices is a table. Everything in this module is static: no array of the user's is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


class NotSeparableError(Exception):
    """A table of a variable that was split into several is no sum of tables (internal signal)."""


class Table:
    """A static integer array with a hash; equal when the entries are."""

    __slots__ = ("_hash", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array, dtype=np.int64)
        self.array.setflags(write=False)
        self._hash = hash((self.array.size, self.array.tobytes()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and np.array_equal(self.array, other.array)

    def __repr__(self) -> str:
        return f"Table({self.array.size} entries)"


Weight = int | Table


@dataclass(frozen=True)
class Axis:
    """A position: `offset` plus the weight of every variable, sorted by variable."""

    offset: int = 0
    weights: tuple[tuple[int, Weight], ...] = ()

    @classmethod
    def of(cls, variable: int, *, offset: int = 0, stride: int = 1) -> Axis:
        """The axis that one variable walks."""
        return cls(offset, ((variable, stride),))

    @classmethod
    def sum_of(cls, offset: int, weights: Iterable[tuple[int, Weight]]) -> Axis:
        """The canonical axis: weights of a variable added up, tables that are strides made strides."""
        combined: dict[int, Weight] = {}
        for variable, weight in weights:
            present = combined.get(variable)
            combined[variable] = weight if present is None else _add_weights(present, weight)
        canonical = []
        for variable, weight in sorted(combined.items()):
            first, simple = _simplify(weight)
            offset += first
            if simple != 0:
                canonical.append((variable, simple))
        return cls(int(offset), tuple(canonical))

    @property
    def variables(self) -> tuple[int, ...]:
        return tuple(variable for variable, _ in self.weights)

    @property
    def stride(self) -> int | None:
        """The stride when exactly one variable with a stride walks the axis."""
        if len(self.weights) == 1 and isinstance(self.weights[0][1], int):
            return self.weights[0][1]
        return None


def _entries(weight: Weight, size: int) -> np.ndarray:
    return weight.array if isinstance(weight, Table) else weight * np.arange(size)


def _add_weights(first: Weight, second: Weight) -> Weight:
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    size = first.array.size if isinstance(first, Table) else second.array.size  # type: ignore[union-attr]
    return Table(_entries(first, size) + _entries(second, size))


def _simplify(weight: Weight) -> tuple[int, Weight]:
    """A weight as (value at index 0, weight that is 0 there), with evenly spaced tables as strides."""
    if isinstance(weight, int):
        return 0, weight
    array = weight.array
    if array.size == 0:
        return 0, 0
    first = int(array[0])
    if array.size == 1:
        return first, 0
    step = int(array[1]) - first
    if np.array_equal(array, first + step * np.arange(array.size)):
        return first, step
    return first, weight if first == 0 else Table(array - first)


def substitute(axis: Axis, bindings: Mapping[int, Axis], sizes: Mapping[int, int]) -> Axis:
    """The axis with some variables replaced by functions of others, whose sizes are given.

    Raises:
        NotSeparableError: a variable with a table would become a sum of several variables.
    """
    if not any(variable in bindings for variable, _ in axis.weights):
        return axis
    offset = axis.offset
    weights: list[tuple[int, Weight]] = []
    for variable, weight in axis.weights:
        bound = bindings.get(variable)
        if bound is None:
            weights.append((variable, weight))
        elif isinstance(weight, int):
            offset += weight * bound.offset
            weights.extend((v, _scale(w, weight)) for v, w in bound.weights)
        else:
            extra_offset, extra = _compose(weight, bound, sizes)
            offset += extra_offset
            weights.extend(extra)
    return Axis.sum_of(offset, weights)


def _scale(weight: Weight, factor: int) -> Weight:
    return Table(weight.array * factor) if isinstance(weight, Table) else weight * factor


def _compose(
    table: Table, inner: Axis, sizes: Mapping[int, int]
) -> tuple[int, list[tuple[int, Weight]]]:
    if not inner.weights:
        return int(table.array[inner.offset]), []
    if len(inner.weights) > 1:
        raise NotSeparableError
    ((variable, weight),) = inner.weights
    indices = inner.offset + _entries(weight, sizes[variable])
    return 0, [(variable, Table(table.array[indices]))]


def positions(axis: Axis, variables: Sequence[int], sizes: Mapping[int, int]) -> np.ndarray:
    """The positions over the grid of the given variables, broadcastable against that grid."""
    total = np.full((1,) * len(variables), axis.offset, dtype=np.int64)
    for variable, weight in axis.weights:
        shape = [1] * len(variables)
        shape[variables.index(variable)] = sizes[variable]
        total = total + _entries(weight, sizes[variable]).reshape(shape)
    return total

"""The static shape of a Jacobian block: where its entries are, before any number is known.

A block of the Jacobian, ∂(output of shape O)/∂(input of shape I), is a sum of *terms*

    J[o, i] = coefficient · Σ_t  value[t_stored] · [o = out(t)] · [i = in(t)]

over loop variables t. One formula covers the kinds a Jacobian is made of:

    scalar, dense           every axis has a variable of its own
    diagonal pair           one variable walks an output axis and an input axis (a batch axis, a map)
    offset diagonal         the same with different offsets (slices, pads, stencils)
    replicated              a variable that `value` is not stored over (broadcasts, sums)
    selection, permutation  an axis with a table (gathers with known indices)
    ±1, constants           no value at all, only the coefficient

Vocabulary
    variable   an integer that names a loop; the loop runs from 0 to its size - 1.
    weight     what a variable adds to a position: a stride (`int`), or a `Table` (one addend per index).
    axis       `offset + Σ weight(variable)`: where, along one axis of an array, a loop iteration lands.
               `out` and `in` are one `Axis` per array axis. A slice is a stride with an offset, a reshape is
               several strides, a permutation or a gather with known indices is a table.

Structures are interned: equal ones are the same object, so that products and sums can be memoised by
identity. Everything in this module is static. The numbers are in `_blocks`, in arrays that may be traced.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
            # One form per axis: equal axes have to be equal objects, or sums would not find their terms. So
            # every weight is 0 at index 0 (the rest is in the offset), and a table that counts evenly is a
            # stride.
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
        # The position is offset + Σ weight(v). With v = bound(u) = c + Σ w(u), a stride s adds s·c to the
        # offset and s·w to the weights: linear functions compose. A table does not distribute over a sum, so
        # T[c + w(u)] is a table of u only where there is one u; see `_compose`.
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


Shape = tuple[int, ...]

# Weak, because constants of the user's become coefficients: structures that are no longer used are dropped.
_interned: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def _intern(key: Any, make: Any) -> Any:
    # `setdefault` decides between two threads that have made the same one. The first look saves making it; a
    # weak entry may vanish between the two, and is then made again.
    found = _interned.get(key)
    return _interned.setdefault(key, make()) if found is None else found


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a block. Make it with `canonical_term`, which interns.

    Attributes:
        out_shape: shape of the output array.
        in_shape: shape of the input array.
        sizes: how far every loop variable runs; all at least 2.
        out_axes: where an iteration lands in the output, per axis.
        in_axes: where it lands in the input, per axis.
        stored: the variables that `value` has an axis for, ascending.
        valued: whether there is a value array; otherwise all entries equal the coefficient.
        coefficient: static factor of every entry.
    """

    out_shape: Shape
    in_shape: Shape
    sizes: Shape
    out_axes: tuple[Axis, ...]
    in_axes: tuple[Axis, ...]
    stored: tuple[int, ...]
    valued: bool
    coefficient: float

    @cached_property
    def place(self) -> tuple[Any, ...]:
        """What has to agree for two terms to be added entry by entry."""
        return self.sizes, self.out_axes, self.in_axes

    @property
    def entries(self) -> int:
        """The number of loop iterations, that is of structural non-zeros."""
        return math.prod(self.sizes)

    @property
    def stored_shape(self) -> Shape:
        return tuple(self.sizes[v] for v in self.stored)

    def flat_positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The flat output and input index of every entry, over the grid of all variables."""
        grid = range(len(self.sizes))
        sizes = dict(enumerate(self.sizes))
        rows = _flat(self.out_axes, self.out_shape, grid, sizes)
        columns = _flat(self.in_axes, self.in_shape, grid, sizes)
        return np.broadcast_to(rows, self.sizes), np.broadcast_to(columns, self.sizes)

    def rows_with_entries(self) -> np.ndarray | None:
        """The flat output indices at which there are entries, in ascending order; `None` for all."""
        return self._reached(self.out_axes, self.out_shape)

    def columns_with_entries(self) -> np.ndarray | None:
        """The same of the input."""
        return self._reached(self.in_axes, self.in_shape)

    def _reached(self, axes: Sequence[Axis], shape: Shape) -> np.ndarray | None:
        # Every row has an entry if each axis walks all of its length by a variable that walks no other axis:
        # then the loop reaches every combination. Two axes that share a variable reach a diagonal only.
        walked = [axis.variables for axis in axes if axis.variables]
        is_whole = all(
            axis == (Axis.of(axis.variables[0]) if length > 1 and axis.variables else Axis())
            and math.prod(self.sizes[v] for v in axis.variables) == length
            for axis, length in zip(axes, shape, strict=True)
        )
        if is_whole and len(set(walked)) == len(walked):  # every axis walks its whole length, alone
            return None
        return np.unique(_flat(axes, shape, range(len(self.sizes)), dict(enumerate(self.sizes))))

    def transposed(self) -> tuple[Term, tuple[int, ...]]:
        """The term of the transposed block, and how to transpose the value for it.

        Jᵀ[i, o] = J[o, i]: output and input change sides, and the loop stays. But variables are numbered by
        their first appearance, output first, so they get other numbers, and the value's axes, which are
        in ascending order of these numbers, another order. Nothing is conjugated.
        """
        term, order = canonical_term(
            self.in_shape, self.out_shape, dict(enumerate(self.sizes)),
            self.in_axes, self.out_axes, self.stored,
            valued=self.valued, coefficient=self.coefficient,
        )  # fmt: skip
        return term, tuple(self.stored.index(v) for v in order)

    def with_coefficient(self, coefficient: float) -> Term:
        """The same places with another static factor."""
        return _make_term(
            self.out_shape, self.in_shape, self.sizes, self.out_axes, self.in_axes, self.stored,
            self.valued, coefficient,
        )  # fmt: skip

    def with_stored(self, stored: Sequence[int]) -> Term:
        """The same places with a value over the given variables, and no coefficient."""
        return _make_term(
            self.out_shape, self.in_shape, self.sizes, self.out_axes, self.in_axes, tuple(stored),
            True, 1.0,
        )  # fmt: skip


def _flat(axes: Sequence[Axis], shape: Shape, grid: range, sizes: Mapping[int, int]) -> np.ndarray:
    total = np.zeros((1,) * len(grid), dtype=np.int64)
    for axis, length in zip(axes, shape, strict=True):
        total = total * length + positions(axis, grid, sizes)
    return total


def _make_term(*fields: Any) -> Term:
    return _intern((Term, *fields), lambda: Term(*fields))


def canonical_term(
    out_shape: Shape,
    in_shape: Shape,
    sizes: Mapping[int, int],
    out_axes: Sequence[Axis],
    in_axes: Sequence[Axis],
    stored: Sequence[int],
    *,
    valued: bool,
    coefficient: float = 1.0,
) -> tuple[Term, tuple[int, ...]]:
    """The interned term, with variables numbered in order of first appearance.

    Args:
        out_shape: shape of the output array.
        in_shape: shape of the input array.
        sizes: size of every variable that occurs.
        out_axes: position in the output, per axis.
        in_axes: position in the input, per axis.
        stored: the variables of the value's axes, in the order of those axes.
        valued: whether there is a value.
        coefficient: static factor.

    Returns:
        The term, and the variables of `stored` in the order in which the term's value wants its axes
        (variables of size 1 have none; the caller squeezes them).
    """
    # A loop that runs once adds its weight at index 0, which is 0: it can be left out. Otherwise a block that
    # is (1, n) in one place and (n,) in another would have two structures.
    trivial = {v: Axis() for v, size in sizes.items() if size == 1}
    out_axes = [substitute(axis, trivial, sizes) for axis in out_axes]
    in_axes = [substitute(axis, trivial, sizes) for axis in in_axes]
    names: dict[int, int] = {}
    for axis in (*out_axes, *in_axes):
        for variable in axis.variables:
            names.setdefault(variable, len(names))
    new_sizes = {new: sizes[old] for old, new in names.items()}
    renamed = {old: Axis.of(new) for old, new in names.items()}
    kept = sorted((v for v in stored if v in names), key=names.__getitem__)
    term = _make_term(
        tuple(out_shape), tuple(in_shape), tuple(new_sizes[i] for i in range(len(names))),
        tuple(substitute(axis, renamed, new_sizes) for axis in out_axes),
        tuple(substitute(axis, renamed, new_sizes) for axis in in_axes),
        tuple(names[v] for v in kept), valued, coefficient,
    )  # fmt: skip
    return term, tuple(kept)


def dense_term(out_shape: Shape, in_shape: Shape) -> Term:
    """A value for every pair of an output and an input element."""
    sizes = dict(enumerate((*out_shape, *in_shape)))
    axes = [Axis.of(v) for v in sizes]
    split = len(out_shape)
    return canonical_term(
        out_shape, in_shape, sizes, axes[:split], axes[split:], tuple(sizes), valued=True
    )[0]


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of a whole block: its terms. No term means structurally zero.

    Attributes:
        out_shape: shape of the output array.
        in_shape: shape of the input array.
        terms: the summands.
        index_map: the block only moves entries (reshape, slice, transpose, …); products with it are
            free in the counting convention, because they need no multiplication.
    """

    out_shape: Shape
    in_shape: Shape
    terms: tuple[Term, ...]
    index_map: bool = False

    @property
    def entries(self) -> int:
        """Structural non-zeros, terms counted one by one."""
        return sum(term.entries for term in self.terms)

    @cached_property
    def stored(self) -> int:
        """Numbers that a block of this structure holds."""
        return sum(math.prod(term.stored_shape) for term in self.terms if term.valued)

    @property
    def is_zero(self) -> bool:
        return not self.terms

    @property
    def kind(self) -> str:
        """The terms in words, without the shapes."""
        return " + ".join(describe_term(term) for term in self.terms) or "zero"

    def __repr__(self) -> str:
        return f"{list(self.out_shape)} × {list(self.in_shape)}: {self.kind}"


def structure_of(terms: Sequence[Term], *, index_map: bool = False) -> Structure:
    """The interned structure of at least one term."""
    fields = (terms[0].out_shape, terms[0].in_shape, tuple(terms), index_map)
    return _intern((Structure, *fields), lambda: Structure(*fields))


def zero_structure(out_shape: Shape, in_shape: Shape) -> Structure:
    """The structure of a block without entries."""
    fields = (tuple(out_shape), tuple(in_shape), (), False)
    return _intern((Structure, *fields), lambda: Structure(*fields))


def describe_term(term: Term) -> str:
    """A term in words, as `repr` of structures and results show it."""
    if not term.sizes:
        kind = "entry" if term.out_shape or term.in_shape else "scalar"
    else:
        in_out = {v for axis in term.out_axes for v in axis.variables}
        in_in = {v for axis in term.in_axes for v in axis.variables}
        parts = []
        diagonal = len(in_out & in_in)
        if diagonal:
            shifted = any(_is_offset_pair(term, v) for v in in_out & in_in)
            parts.append(f"{'offset-' if shifted else ''}diagonal({diagonal})")
        dense = (in_out | in_in) - (in_out & in_in)
        replicated = dense - set(term.stored)
        if dense - replicated:
            parts.append(f"dense({len(dense - replicated)})")
        if replicated:
            parts.append(f"replicated({len(replicated)})")
        kind = "×".join(parts)
    if not term.valued:
        return kind if term.coefficient == 1 else f"{term.coefficient:g}·{kind}"
    return kind


def _is_offset_pair(term: Term, variable: int) -> bool:
    out = {axis.offset for axis in term.out_axes if variable in axis.variables}
    inside = {axis.offset for axis in term.in_axes if variable in axis.variables}
    return out != inside

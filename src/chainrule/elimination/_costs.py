"""What a product and a sum of two edges cost by the field's convention.

Published counts see an edge as a tensor whose axes are either *dense* or halves of a *diagonal pair*, with
or without data along them. A product of two edges costs

    (dense output axes of the outer edge that carry data)
    × (over the axes in the middle: the length if either side is dense; the length if both are diagonal
       and one of them carries data; otherwise 1)
    × (dense input axes of the inner edge that carry data)

and nothing if either edge only moves entries. Our structures are finer (offset diagonals, selections), so
they are first seen through the convention's eyes: what is no full diagonal counts as dense there.
Products with ±1 and with constants are counted; `nontrivial` leaves them out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from chainrule.elimination._axes import Axis
from chainrule.elimination._structure import Structure, Term


@dataclass(frozen=True)
class _Side:
    """One side of an edge as the convention sees it, per axis: its partner if diagonal; has it data."""

    partner: tuple[int | None, ...]
    data: tuple[bool, ...]


@dataclass(frozen=True)
class _TermView:
    """A term as the convention sees it: diagonal pairs, and per axis whether it carries data."""

    pairs: frozenset[tuple[int, int]]
    out_data: tuple[bool, ...]
    in_data: tuple[bool, ...]


@lru_cache(maxsize=65536)
def _view(structure: Structure) -> tuple[_Side, _Side]:
    """The output side and the input side of an edge: what its terms have in common."""
    views = [_term_view(term) for term in structure.terms]
    pairs = frozenset.intersection(*(view.pairs for view in views))
    # Where terms disagree about a diagonal, their sum is dense there and stored.
    is_mixed = any(view.pairs != pairs for view in views)
    out = _side(dict(pairs), [view.out_data for view in views], is_mixed)
    inside = _side({b: a for a, b in pairs}, [view.in_data for view in views], is_mixed)
    return out, inside


def _side(partner: dict[int, int], data: list[tuple[bool, ...]], is_mixed: bool) -> _Side:
    axes = range(len(data[0]))
    return _Side(
        tuple(partner.get(a) for a in axes),
        tuple(any(d[a] for d in data) or (is_mixed and a not in partner) for a in axes),
    )


def _term_view(term: Term) -> _TermView:
    pairs = set()
    for a, out in enumerate(term.out_axes):
        for b, inside in enumerate(term.in_axes):
            is_line = (
                _is_full(out, term.out_shape[a], term) and term.in_shape[b] == term.out_shape[a]
            )
            if is_line and out == inside and _uses(term, out.variables[0]) == 2:
                pairs.add((a, b))
    # The convention stores the ones of a sum, so an input axis that is not diagonal carries data.
    free = {v for axis in term.in_axes for v in axis.variables}
    free -= {v for axis in term.out_axes for v in axis.variables}
    return _TermView(
        frozenset(pairs),
        tuple(_has_data(x, n, term) for x, n in zip(term.out_axes, term.out_shape, strict=True)),
        tuple(
            _has_data(x, n, term) or not free.isdisjoint(x.variables)
            for x, n in zip(term.in_axes, term.in_shape, strict=True)
        ),
    )


def _is_full(axis: Axis, length: int, term: Term) -> bool:
    return axis.offset == 0 and axis.stride == 1 and term.sizes[axis.variables[0]] == length


def _uses(term: Term, variable: int) -> int:
    return sum(variable in axis.variables for axis in (*term.out_axes, *term.in_axes))


def _has_data(axis: Axis, length: int, term: Term) -> bool:
    if length == 1:
        return False
    if not _is_full(axis, length, term):
        return True
    return axis.variables[0] in term.stored


@lru_cache(maxsize=1 << 18)
def multiplications(outer: Structure, inner: Structure) -> int:
    """The convention's cost of `outer · inner`."""
    if outer.index_map or inner.index_map or outer.is_zero or inner.is_zero:
        return 0
    outer_out, outer_in = _view(outer)
    inner_out, inner_in = _view(inner)
    cost = 1
    for partner, data, length in zip(
        outer_out.partner, outer_out.data, outer.out_shape, strict=True
    ):
        if partner is None and data:
            cost *= length
    middle = zip(
        outer_in.partner,
        outer_in.data,
        inner_out.partner,
        inner_out.data,
        outer.in_shape,
        strict=True,
    )
    for left, left_data, right, right_data, length in middle:
        if left is None or right is None or left_data or right_data:
            cost *= length
    for partner, data, length in zip(inner_in.partner, inner_in.data, inner.in_shape, strict=True):
        if partner is None and data:
            cost *= length
    return cost


@lru_cache(maxsize=1 << 18)
def nontrivial(outer: Structure, inner: Structure) -> int:
    """The cost of `outer · inner` without products by ±1 and products of constants."""
    if _is_unit(outer) or _is_unit(inner) or (_is_constant(outer) and _is_constant(inner)):
        return 0
    return multiplications(outer, inner)


def _is_constant(structure: Structure) -> bool:
    return not any(term.valued for term in structure.terms)


def _is_unit(structure: Structure) -> bool:
    return _is_constant(structure) and all(abs(t.coefficient) == 1 for t in structure.terms)


@lru_cache(maxsize=65536)
def additions(total: Structure) -> int:
    """The convention's cost of the addition that gave a structure."""
    if total.is_zero:
        return 0
    out, inside = _view(total)
    sides = [*zip(out.data, total.out_shape, strict=True)]
    sides += [
        (data and partner is None, length)
        for data, partner, length in zip(inside.data, inside.partner, total.in_shape, strict=True)
    ]
    return math.prod(length for data, length in sides if data)

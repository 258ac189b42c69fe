"""The sum of terms, planned on structures alone.

Terms at the same place are added entry by entry. Terms at different places stay side by side (the bands
of a stencil), until storing them apart is no cheaper than storing their *hull*: the smallest box that
keeps the diagonals which all of them have in common. Then they are added inside the hull.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chainrule.elimination._axes import Axis
from chainrule.elimination._structure import Term, canonical_term

_log = logging.getLogger(__name__)

_LARGE = 1_000_000
"""Blocks that lose their structure at this size deserve a line in the log."""

MAX_TERMS = 32
"""More terms than this are added up in their hull: every product visits all pairs of terms."""


@dataclass(frozen=True)
class Merge:
    """One term of a sum and where it comes from.

    Attributes:
        result: the term.
        sources: the summands that go into it.
        spreads: per source that has to be laid out inside a hull, the positions of its entries in the
            hull's value, one axis per axis of the value; empty when all are at the same place.
    """

    result: Term
    sources: tuple[int, ...]
    spreads: dict[int, tuple[Axis, ...]]


@lru_cache(maxsize=65536)
def plan_sum(terms: tuple[Term, ...]) -> tuple[Merge, ...]:
    """The terms of a sum; empty when everything cancels structurally."""
    merges: list[Merge] = []
    for merge in _at_same_place(terms):
        for k, other in enumerate(merges):
            if _pays([other, merge]):
                merges[k] = _joined([other, merge], terms)
                break
        else:
            merges.append(merge)
    if len(merges) > 1 and _pays(merges):
        merges = [_joined(merges, terms)]
    elif len(merges) > MAX_TERMS:
        apart = sum(_room(merge.result) for merge in merges)
        merges = [_joined(merges, terms)]
        _warn_of_large_block(merges[0].result, f"a sum of more than {MAX_TERMS} terms", apart)
    return tuple(merges)


def _warn_of_large_block(term: Term, cause: str, entries: int) -> None:
    """Say in the log that a block is about to be stored with most of its zeros."""
    stored = _room(term)
    if stored > _LARGE:
        _log.warning(
            "A Jacobian block %s ← %s is stored with %d entries, of which at most %d are not zero, "
            "because of %s. Split the array, or pass method='compressed'.",
            list(term.out_shape), list(term.in_shape), stored, entries, cause,
        )  # fmt: skip


def _pays(merges: Sequence[Merge]) -> bool:
    """Whether the hull of some terms takes no more room than they take apart."""
    results = [merge.result for merge in merges]
    return math.prod(_hull(results).sizes) <= sum(map(_room, results))


def _room(term: Term) -> int:
    """Entries along diagonals and stored axes; what is only replicated takes no room."""
    walked_out = {v for axis in term.out_axes for v in axis.variables}
    walked_in = {v for axis in term.in_axes for v in axis.variables}
    return math.prod(term.sizes[v] for v in (walked_out & walked_in) | set(term.stored))


def _joined(merges: Sequence[Merge], terms: Sequence[Term]) -> Merge:
    hull = _hull([merge.result for merge in merges])
    sources = tuple(source for merge in merges for source in merge.sources)
    return Merge(hull, sources, {source: _inside(terms[source], hull) for source in sources})


def _at_same_place(terms: Sequence[Term]) -> tuple[Merge, ...]:
    groups: dict[object, list[int]] = {}
    for index, term in enumerate(terms):
        groups.setdefault(term.place, []).append(index)
    merges = []
    for sources in groups.values():
        result = _added([terms[k] for k in sources])
        if result is not None:
            merges.append(Merge(result, tuple(sources), {}))
    return tuple(merges)


def _added(terms: Sequence[Term]) -> Term | None:
    first = terms[0]
    if len(terms) == 1:
        return first
    if not any(term.valued for term in terms):
        coefficient = math.fsum(term.coefficient for term in terms)
        return first.with_coefficient(coefficient) if coefficient else None
    return first.with_stored(sorted({v for term in terms for v in term.stored}))


def _hull(terms: Sequence[Term]) -> Term:
    """A term that is stored over every variable and covers all the given ones."""
    first = terms[0]
    out_boxes = [_box([t.out_axes[a] for t in terms], terms) for a in range(len(first.out_shape))]
    in_boxes = [_box([t.in_axes[b] for t in terms], terms) for b in range(len(first.in_shape))]
    pairs = _common_diagonals(terms)
    sizes: dict[int, int] = {}
    out_axes = []
    for low, high in out_boxes:
        variable = len(sizes)
        sizes[variable] = high - low + 1
        out_axes.append(Axis.of(variable, offset=low))
    in_axes = []
    for b, (low, high) in enumerate(in_boxes):
        if b in pairs:
            a = pairs[b]
            shift = terms[0].in_axes[b].offset - terms[0].out_axes[a].offset
            in_axes.append(Axis.of(a, offset=out_axes[a].offset + shift))
        else:
            variable = len(sizes)
            sizes[variable] = high - low + 1
            in_axes.append(Axis.of(variable, offset=low))
    return canonical_term(
        first.out_shape, first.in_shape, sizes, out_axes, in_axes, tuple(sizes), valued=True
    )[0]


def _box(axes: Sequence[Axis], terms: Sequence[Term]) -> tuple[int, int]:
    """The least and the greatest position that any of the terms reaches along an axis."""
    ends = [_ends(axis, term) for axis, term in zip(axes, terms, strict=True)]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _ends(axis: Axis, term: Term) -> tuple[int, int]:
    low = high = axis.offset
    for variable, weight in axis.weights:
        if isinstance(weight, int):
            reach = weight * (term.sizes[variable] - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        else:
            low, high = low + int(weight.array.min()), high + int(weight.array.max())
    return low, high


def _common_diagonals(terms: Sequence[Term]) -> dict[int, int]:
    """Input axis → output axis that it equals, up to the same shift, in every term."""
    first = terms[0]
    pairs: dict[int, int] = {}
    for b in range(len(first.in_shape)):
        for a in range(len(first.out_shape)):
            if a not in pairs.values() and _shift(terms, a, b) is not None:
                pairs[b] = a
                break
    return pairs


def _shift(terms: Sequence[Term], a: int, b: int) -> int | None:
    shifts = set()
    for term in terms:
        out, inside = term.out_axes[a], term.in_axes[b]
        is_line = out.stride == 1 or not out.weights
        if not is_line or out.weights != inside.weights:
            return None
        shifts.add(inside.offset - out.offset)
    return shifts.pop() if len(shifts) == 1 else None


def _inside(term: Term, hull: Term) -> tuple[Axis, ...]:
    """For every axis of the hull's value, where an entry of the term lands on it."""
    landed: dict[int, Axis] = {}
    for own, around in zip(
        (*term.out_axes, *term.in_axes), (*hull.out_axes, *hull.in_axes), strict=True
    ):
        for variable in around.variables:
            landed[variable] = Axis(own.offset - around.offset, own.weights)
    return tuple(landed[v] for v in hull.stored)

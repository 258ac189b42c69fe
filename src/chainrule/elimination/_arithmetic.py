"""Products and sums of terms, planned on structures alone.

Products. (L · R)[o, i] = Σ_m L[o, m] · R[m, i]. The loop variables of both factors run freely except that the
position in the middle array must agree, axis by axis. `_Matching` solves these equations one after the
other: each solution binds variables of the factors to functions of new ones. What is left is a loop nest
over the new variables; those that reach neither the output nor the input are summed. Every pair of terms has
a product: where no neat solution exists, variables are *fused* into one that enumerates the combinations (a
coordinate list), which is always possible.

Sums. Terms at the same place are added entry by entry. Terms at different places stay side by side (the bands
of a stencil), until storing them apart is no cheaper than storing their *hull*: the smallest box that
keeps the diagonals which all of them have in common. Then they are added inside the hull.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from chainrule.elimination._structure import (
    Axis,
    NotSeparableError,
    Table,
    Term,
    canonical_term,
    positions,
    substitute,
)


@dataclass(frozen=True)
class ProductPlan:
    """How to compute the value of a product from the values of its factors.

    Attributes:
        result: the term of the product.
        sizes: size per loop variable of the product's nest.
        left: per stored axis of the left value, which of its indices an iteration reads.
        right: the same for the right value.
        out: the variables of the result value's axes, in order; all others are summed.
    """

    result: Term
    sizes: dict[int, int]
    left: tuple[Axis, ...]
    right: tuple[Axis, ...]
    out: tuple[int, ...]


@lru_cache(maxsize=65536)
def plan_product(left: Term, right: Term) -> ProductPlan | None:
    """The plan of `left · right`, or `None` when no entry of one meets an entry of the other."""
    try:
        return _plan(left, right, _Matching(left, right))
    except NotSeparableError:
        return _plan(left, right, _Matching(left, right, fuse_all=True))


def _plan(left: Term, right: Term, matching: _Matching) -> ProductPlan | None:
    if not matching.solve():
        return None
    resolve, sizes = matching.resolve, matching.sizes
    out_axes = [resolve(axis) for axis in matching.left_out]
    in_axes = [resolve(axis) for axis in matching.right_in]
    left_reads = tuple(resolve(axis) for axis in matching.left_stored)
    right_reads = tuple(resolve(axis) for axis in matching.right_stored)

    # A variable that neither a position nor a value depends on repeats the same summand: a factor.
    reaching = _variables(out_axes) | _variables(in_axes)
    read = _variables(left_reads) | _variables(right_reads)
    unseen = matching.free_variables() - reaching - read
    repeats = math.prod(sizes[v] for v in unseen)
    term, order = canonical_term(
        left.out_shape, right.in_shape, sizes, out_axes, in_axes, sorted(read & reaching),
        valued=left.valued or right.valued,
        coefficient=left.coefficient * right.coefficient * repeats,
    )  # fmt: skip
    return ProductPlan(term, dict(sizes), left_reads, right_reads, order)


def _variables(axes: Sequence[Axis]) -> set[int]:
    return {v for axis in axes for v in axis.variables}


class _Matching:
    """The equations "left's position in the middle = right's position in the middle"."""

    def __init__(self, left: Term, right: Term, *, fuse_all: bool = False) -> None:
        shift = len(left.sizes)
        self.sizes: dict[int, int] = dict(enumerate((*left.sizes, *right.sizes)))
        self.bindings: dict[int, Axis] = {}
        moved = {v: Axis.of(v + shift) for v in range(len(right.sizes))}
        self.left_out = left.out_axes
        self.left_in = left.in_axes
        self.left_stored = tuple(Axis.of(v) for v in left.stored)
        self.right_out = tuple(substitute(axis, moved, self.sizes) for axis in right.out_axes)
        self.right_in = tuple(substitute(axis, moved, self.sizes) for axis in right.in_axes)
        self.right_stored = tuple(Axis.of(v + shift) for v in right.stored)
        if fuse_all:
            self._fuse(range(shift))
            self._fuse(range(shift, shift + len(right.sizes)))

    def solve(self) -> bool:
        """Match all axes; `False` when nothing matches."""
        return all(
            self._match(self.resolve(f), self.resolve(g))
            for f, g in zip(self.left_in, self.right_out, strict=True)
        )

    def resolve(self, axis: Axis) -> Axis:
        """The axis in terms of the variables that are still free."""
        while any(v in self.bindings for v in axis.variables):
            axis = substitute(axis, self.bindings, self.sizes)
        return axis

    def free_variables(self) -> set[int]:
        """The variables of the loop nest."""
        return set(self.sizes) - set(self.bindings)

    def _match(self, f: Axis, g: Axis) -> bool:
        if f == g:
            return True
        if not f.weights and not g.weights:
            return f.offset == g.offset
        if set(f.variables) & set(g.variables):
            fused = self._fuse(sorted({*f.variables, *g.variables}))
            return self._restrict(fused, self._image(f, fused) == self._image(g, fused))
        if f.stride is not None and g.stride is not None and self._match_strides(f, g):
            return not self._is_empty
        if self._match_digits(f, g):
            return True
        return self._join(f, g)

    _is_empty = False

    def _new(self, size: int) -> int:
        variable = len(self.sizes)
        self.sizes[variable] = size
        return variable

    def _bind(self, variable: int, axis: Axis) -> None:
        self.bindings[variable] = axis

    def _progression(self, count: int) -> tuple[tuple[int, int], ...]:
        """The weights of a new variable of that size; none when it would only take one value."""
        return ((self._new(count), 1),) if count > 1 else ()

    # Two single strides, a·s + c = b·t + d: solved in closed form when one stride is ±1 after division.

    def _match_strides(self, f: Axis, g: Axis) -> bool:
        (s, a), (t, b) = f.weights[0], g.weights[0]
        assert isinstance(a, int)
        assert isinstance(b, int)
        gap = g.offset - f.offset
        common = math.gcd(a, b)
        if gap % common:
            self._is_empty = True
            return True
        # a·s = b·t + gap. If a = ±1, then s = a·b·t + a·gap, since 1/a = a. If b = ±1, then
        # t = a·b·s - b·gap.
        a, b, gap = a // common, b // common, gap // common
        if abs(a) != 1 and abs(b) != 1:
            return False
        if abs(a) == 1:
            self._follow(t, s, b * a, gap * a)
        else:
            self._follow(s, t, a * b, -gap * b)
        return True

    def _follow(self, leader: int, follower: int, stride: int, offset: int) -> None:
        """Bind follower = stride · leader + offset, with leader kept where follower is in range."""
        # 0 ≤ stride · leader + offset ≤ last: the leader runs between the two quotients, in whichever order
        # the sign of the stride puts them. Rounding them is safe: a quotient that is no integer is at least 1
        # / |stride| away from one, which doubles resolve for all sizes that memory can hold.
        last = self.sizes[follower] - 1
        ends = (-offset / stride, (last - offset) / stride)
        low = max(0, math.ceil(min(ends)))
        high = min(self.sizes[leader] - 1, math.floor(max(ends)))
        if high < low:
            self._is_empty = True
            return
        walk = self._progression(high - low + 1)
        self._bind(leader, Axis(low, walk))
        self._bind(follower, Axis(offset + stride * low, tuple((v, stride) for v, _ in walk)))

    # Mixed-radix numbers: a reshape splits or merges axes into digits.

    def _match_digits(self, f: Axis, g: Axis) -> bool:
        f_digits, g_digits = self._digits(f), self._digits(g)
        if f_digits is None or g_digits is None:
            return False
        if len(f_digits) == 1 and len(g_digits) > 1:
            return self._match_inside(f, g, g_digits)
        if len(g_digits) == 1 and len(f_digits) > 1:
            return self._match_inside(g, f, f_digits)
        if f.offset != g.offset or not _refines([n for _, n in f_digits], [n for _, n in g_digits]):
            return False
        self._refine(f_digits, g_digits)
        return True

    def _digits(self, axis: Axis) -> list[tuple[int, int]] | None:
        """(variable, size) from the least significant digit on, if the axis counts without gaps."""
        if not all(isinstance(weight, int) for _, weight in axis.weights):
            return None
        expected, digits = 1, []
        for variable, stride in sorted(axis.weights, key=lambda item: item[1]):  # type: ignore[arg-type,return-value]
            if stride != expected:
                return None
            digits.append((variable, self.sizes[variable]))
            expected *= self.sizes[variable]
        return digits or None

    def _match_inside(self, single: Axis, several: Axis, digits: list[tuple[int, int]]) -> bool:
        """Bind the one variable to the number that the digits spell, if that stays in its range."""
        variable = single.variables[0]
        # offset₁ + v = offset₂ + number, so v = number + (offset₂ - offset₁). The digits count without gaps
        # from 0 to their product; where all of these are in the variable's range no pair is lost.
        start = several.offset - single.offset
        count = math.prod(n for _, n in digits)
        if start < 0 or start + count > self.sizes[variable]:
            return False
        self._bind(variable, Axis(start, several.weights))
        return True

    def _refine(self, first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
        first, second = list(first), list(second)
        while first and second:
            (u, n), (v, m) = first.pop(0), second.pop(0)
            if n == m:
                self._bind(u, Axis.of(v))
            elif n > m:
                first.insert(0, self._split(u, v, m, n))
            else:
                second.insert(0, self._split(v, u, n, m))

    def _split(self, variable: int, low: int, low_size: int, size: int) -> tuple[int, int]:
        # A digit of radix n·m is the two digits low + n · high; the other side has the lower one already.
        high = self._new(size // low_size)
        self._bind(variable, Axis.sum_of(0, ((low, 1), (high, low_size))))
        return high, size // low_size

    # Anything else: enumerate.

    def _fuse(self, variables: Sequence[int]) -> int:
        """Replace variables by one that enumerates their combinations."""
        variables = list(variables)
        if len(variables) == 1:
            return variables[0]
        shape = tuple(self.sizes[v] for v in variables)
        fused = self._new(math.prod(shape))
        indices = np.unravel_index(np.arange(math.prod(shape)), shape) if shape else ()
        for variable, index in zip(variables, indices, strict=True):
            self._bind(variable, Axis.sum_of(0, ((fused, Table(index)),)))
        return fused

    def _image(self, axis: Axis, variable: int) -> np.ndarray:
        resolved = self.resolve(axis)
        return np.broadcast_to(positions(resolved, [variable], self.sizes), (self.sizes[variable],))

    def _restrict(self, variable: int, keep: np.ndarray) -> bool:
        return self._select({variable: np.flatnonzero(keep)})

    def _select(self, chosen: dict[int, np.ndarray]) -> bool:
        """Let several variables run together through the chosen indices."""
        count = len(next(iter(chosen.values())))
        if count == 0:
            return False
        fresh = self._new(count)
        for variable, indices in chosen.items():
            self._bind(variable, Axis.sum_of(0, ((fresh, Table(indices)),)))
        return True

    def _join(self, f: Axis, g: Axis) -> bool:
        """All pairs of iterations of the two sides that land on the same place."""
        if not f.weights or not g.weights:
            axis, fixed = (f, g.offset) if f.weights else (g, f.offset)
            fused = self._fuse(axis.variables)
            return self._restrict(fused, self._image(axis, fused) == fixed)
        s, t = self._fuse(f.variables), self._fuse(g.variables)
        left, right = self._image(f, s), self._image(g, t)
        # Sort one side by place; each place of the other side then meets a run of it, from `first` to `last`.
        # `within` counts 0, 1, … inside of each run: the running index minus where the run begins.
        order = np.argsort(right, kind="stable")
        first = np.searchsorted(right[order], left, side="left")
        last = np.searchsorted(right[order], left, side="right")
        counts = last - first
        s_index = np.repeat(np.arange(left.size), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        t_index = order[np.repeat(first, counts) + within]
        return self._select({s: s_index, t: t_index})


def _refines(first: list[int], second: list[int]) -> bool:
    """Whether two digit systems, least significant first, have a common refinement."""
    first, second = list(first), list(second)
    while first and second:
        n, m = first.pop(0), second.pop(0)
        if n % m == 0:
            if n > m:
                first.insert(0, n // m)
        elif m % n == 0:
            second.insert(0, m // n)
        else:
            return False
    return not first and not second


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
    # The hull stores every place of its box once per diagonal that all have in common; apart, each term
    # stores its own entries. As long as the hull is no larger it is better: one block instead of several, and
    # every product later visits the pairs of terms.
    results = [merge.result for merge in merges]
    out_boxes, in_boxes, pairs = _extent(results)
    free = [box for b, box in enumerate(in_boxes) if b not in pairs]
    hull = math.prod(high - low + 1 for low, high in [*out_boxes, *free])
    return hull <= sum(map(_room, results))


def _extent(
    terms: Sequence[Term],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], dict[int, int]]:
    """The boxes that hold all terms along output and input axes, and their common diagonals."""
    first = terms[0]
    out_boxes = [_box([t.out_axes[a] for t in terms], terms) for a in range(len(first.out_shape))]
    in_boxes = [_box([t.in_axes[b] for t in terms], terms) for b in range(len(first.in_shape))]
    return out_boxes, in_boxes, _common_diagonals(terms)


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
        # Constants cancel structurally only if their sum is exactly 0, as in x - x; `fsum` rounds once.
        coefficient = math.fsum(term.coefficient for term in terms)
        return first.with_coefficient(coefficient) if coefficient else None
    return first.with_stored(sorted({v for term in terms for v in term.stored}))


def _hull(terms: Sequence[Term]) -> Term:
    """A term that is stored over every variable and covers all the given ones."""
    first = terms[0]
    out_boxes, in_boxes, pairs = _extent(terms)
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
            # On the common diagonal in = out + shift for every term, so the hull needs no loop of its own for
            # in.
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

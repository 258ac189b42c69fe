"""Counting what an elimination costs, by the convention of the literature.

Costs. Published counts see an edge as a tensor whose axes are either *dense* or halves of a *diagonal pair*,
with or without data along them. A product of two edges costs

    (dense output axes of the outer edge that carry data)
    × (over the axes in the middle: the length if either side is dense; the length if both are diagonal
       and one of them carries data; otherwise 1)
    × (dense input axes of the inner edge that carry data)

and nothing if either edge only moves entries. Our structures are finer (offset diagonals, selections), so
they are first reduced to the convention's: what is not a full diagonal counts as dense there.
Products with ±1 and with constants are counted; `nontrivial` leaves them out.

Kept edges. Published counts come from one program, and some of what it counts is how it stores a partial
rather than what the partial is. To compare with these counts, a `KeptEdge` is kept the way it is kept there:

- The ones of `x + y` and `x - y` are stored along the axes that the other operand has, and those of `-x`
  along all of them, as if they were data.
- A partial that only moves entries (a slice of an input, say) is not applied to what reads it. It stays
  *pending* on the input side, and costs nothing, until a sum or a product from that side needs it.

Counts. `count_operations` counts what this package does: the graph is pruned, dead ends are gone.
`published_counts` counts like the program behind the published numbers, which prunes nothing: edges to values
without a derivative, and edges that lead nowhere, are multiplied as long as they are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from chainrule._jaxpr import JaxprEqn, Var
from chainrule.elimination._blocks import product_structure, sum_structure
from chainrule.elimination._eliminate import EdgeAlgebra, eliminate
from chainrule.elimination._graph import Edges, Graph, whole_graph
from chainrule.elimination._rules import real_shape
from chainrule.elimination._search import OrderStep
from chainrule.elimination._structure import Axis, Structure, Term, structure_of


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
    # A pair is diagonal if one loop walks both axes whole and nothing else: with a third use it would be a
    # diagonal of three axes, which the convention does not have.
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
    # A sum costs one addition per entry of the result that is stored: dense axes with data, and diagonals
    # once (from the output's side).
    out, inside = _view(total)
    sides = [*zip(out.data, total.out_shape, strict=True)]
    sides += [
        (data and partner is None, length)
        for data, partner, length in zip(inside.data, inside.partner, total.in_shape, strict=True)
    ]
    return math.prod(length for data, length in sides if data)


@dataclass(frozen=True)
class KeptEdge:
    """An edge: what is stored, and a move of entries that is still to be applied on its input side.

    Attributes:
        core: the stored part; `None` when the edge is a move and nothing else.
        pending: the move; `None` when there is none.
    """

    core: Structure | None
    pending: Structure | None

    @property
    def is_zero(self) -> bool:
        return any(part is not None and part.is_zero for part in (self.core, self.pending))

    @property
    def applied(self) -> Structure:
        """The edge with its pending move carried out."""
        parts = [part for part in (self.core, self.pending) if part is not None]
        return parts[0] if len(parts) == 1 else product_structure(*parts)


def kept_edges(graph: Graph) -> Edges:
    """The edges of a graph as the counter keeps them."""
    kept = {
        vertex: {
            (result, operand): _kept(graph.equation(vertex), operand, structure)
            for (result, operand), structure in local.structures.items()
        }
        for vertex, local in graph.partials.items()
    }
    return graph.collect(kept, kept_sum)


def _kept(eqn: JaxprEqn, operand: int, structure: Structure) -> KeptEdge:
    if structure.index_map:
        return KeptEdge(None, structure)
    name = eqn.primitive.name
    if name in ("add", "add_any", "sub"):
        return KeptEdge(_with_ones(structure, real_shape(eqn.invars[1 - operand].aval)), None)
    if name == "neg":
        return KeptEdge(_with_ones(structure, structure.out_shape), None)
    return KeptEdge(structure, None)


def _with_ones(structure: Structure, shape: Any) -> Structure:
    """The structure stored along the axes, counted from the last, that are long in a shape."""
    if any(term.valued for term in structure.terms):
        return structure
    (term,) = structure.terms
    missing = len(structure.out_shape) - len(shape)
    long = {axis + missing for axis, length in enumerate(shape) if length > 1}
    stored = {v for axis in long for v in term.out_axes[axis].variables}
    return structure_of([term.with_stored(sorted(stored))]) if stored else structure


@lru_cache(maxsize=1 << 18)
def kept_product(outer: KeptEdge, inner: KeptEdge) -> KeptEdge:
    """The edge outer ∘ inner."""
    # (C_o P_o)(C_i P_i) = (C_o (P_o C_i)) P_i: a pending move is applied when something stored is multiplied
    # from its side, and only then. The move of the inner edge stays pending.
    if inner.core is None:
        return KeptEdge(outer.core, _composed(outer.pending, inner.pending))
    moved = _composed(outer.pending, inner.core)
    return KeptEdge(_composed(outer.core, moved), inner.pending)


def _composed(outer: Structure | None, inner: Structure | None) -> Structure | None:
    if outer is None or inner is None:
        return inner if outer is None else outer
    return product_structure(outer, inner)


@lru_cache(maxsize=1 << 18)
def kept_multiplications(outer: KeptEdge, inner: KeptEdge) -> int:
    """What the counter charges for outer ∘ inner."""
    if outer.core is None or inner.core is None:
        return 0
    moved = _composed(outer.pending, inner.core)
    assert moved is not None
    return multiplications(outer.core, moved)


@lru_cache(maxsize=1 << 16)
def kept_sum(first: KeptEdge, second: KeptEdge) -> KeptEdge:
    """The edge of two parallel ones; pending moves are applied."""
    return KeptEdge(sum_structure(first.applied, second.applied), None)


def kept_additions(total: KeptEdge) -> int:
    """What the counter charges for the addition that gave an edge."""
    return additions(total.applied)


@dataclass
class OperationCounts:
    """What an elimination costs.

    Attributes:
        multiplications: by the convention.
        additions: by the convention.
        nontrivial: multiplications that are neither by ±1 nor of two constants.
        peak: stored entries of the largest block that is formed.
        per_vertex: (vertex, multiplications) of every step, in the order of elimination.
    """

    multiplications: int = 0
    additions: int = 0
    nontrivial: int = 0
    peak: int = 0
    per_vertex: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Counted:
    """An edge twice: as it is, and as the convention keeps it."""

    structure: Structure
    kept: KeptEdge


def count_operations(graph: Graph, order: Iterable[OrderStep]) -> OperationCounts:
    """What eliminating the vertices in order costs."""
    counts = OperationCounts()

    def multiply(outer: _Counted, inner: _Counted) -> _Counted:
        counts.multiplications += kept_multiplications(outer.kept, inner.kept)
        counts.nontrivial += nontrivial(outer.structure, inner.structure)
        product = product_structure(outer.structure, inner.structure)
        counts.peak = max(counts.peak, product.stored)
        return _Counted(product, kept_product(outer.kept, inner.kept))

    def add(first: _Counted, second: _Counted) -> _Counted:
        total = _Counted(
            sum_structure(first.structure, second.structure), kept_sum(first.kept, second.kept)
        )
        counts.additions += kept_additions(total.kept)
        counts.peak = max(counts.peak, total.structure.stored)
        return total

    algebra = EdgeAlgebra(multiply, add, lambda edge: edge.structure.is_zero)

    def observed() -> Iterable[OrderStep]:
        for step in order:
            before = counts.multiplications
            yield step
            vertex = step[0] if isinstance(step, tuple) else step
            counts.per_vertex.append((vertex, counts.multiplications - before))

    kept = kept_edges(graph)
    edges = {
        result: {operand: _Counted(s, kept[result][operand]) for operand, s in row.items()}
        for result, row in graph.structures.items()
    }
    eliminate(graph, edges, observed(), algebra)
    return counts


def published_counts(graph: Graph, order: str | Sequence[OrderStep]) -> OperationCounts:
    """What the counter behind the published numbers says.

    Args:
        graph: of the function.
        order: `"forward"` or `"reverse"`, of all vertices, also those that lead nowhere; or steps, before
            which vertices that they leave out are eliminated at no cost.
    """
    whole = whole_graph(graph)
    inner = [v for v in range(1, whole.size + 1) if not whole.outputs.issuperset(whole.nodes(v))]
    vertices = sorted({*inner, *whole.required})
    if isinstance(order, str):
        return count_operations(whole, vertices if order == "forward" else reversed(vertices))
    left_out = [vertex for vertex in vertices if vertex not in set(order)]
    # What comes from nowhere is free from the front, what leads nowhere is free from the back.
    reached: set[Var] = set(whole.inputs)
    for var, row in whole.structures.items():
        if not reached.isdisjoint(row):
            reached.add(var)
    sources = [v for v in left_out if reached.isdisjoint(whole.nodes(v))]
    sinks = [v for v in reversed(left_out) if v not in sources]
    return count_operations(whole, [*sources, *sinks, *order])

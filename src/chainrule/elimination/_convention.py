"""Edges as the literature's counter keeps them.

Published counts come from one program, and some of what it counts is how it stores a partial rather than what
the partial is. To compare with these counts, an edge here is kept the way it is kept there:

- The ones of `x + y` and `x - y` are stored along the axes that the other operand has, and those of `-x`
  along all of them, as if they were data.
- A partial that only moves entries (a slice of an input, say) is not applied to what reads it. It stays
  *pending* on the input side, and costs nothing, until a sum or a product from that side needs it.

`whole_graph` adds the third difference: that counter does not prune. Edges to values without a derivative,
and edges that lead nowhere, are multiplied as long as they are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chainrule._jaxpr import JaxprEqn
from chainrule.elimination._blocks import product_structure, sum_structure
from chainrule.elimination._costs import additions, multiplications
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._rules import real_shape
from chainrule.elimination._structure import Structure, structure_of


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

"""Counting what an elimination costs, by the field's convention.

`count_operations` counts what this package does: the graph is pruned, dead ends are gone. `published_counts`
counts like the program behind the published numbers, which prunes nothing (see `_convention`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chainrule._jaxpr import Var
from chainrule.elimination._blocks import product_structure, sum_structure
from chainrule.elimination._convention import (
    KeptEdge,
    kept_additions,
    kept_edges,
    kept_multiplications,
    kept_product,
    kept_sum,
)
from chainrule.elimination._costs import nontrivial
from chainrule.elimination._eliminate import Algebra, Step, eliminate
from chainrule.elimination._graph import Graph, whole_graph
from chainrule.elimination._structure import Structure


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


def count_operations(graph: Graph, order: Iterable[Step]) -> OperationCounts:
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

    algebra = Algebra(multiply, add, lambda edge: edge.structure.is_zero)

    def observed() -> Iterable[Step]:
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


def published_counts(graph: Graph, order: str | Sequence[Step]) -> OperationCounts:
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

"""Orders built from the front: relative Markowitz, and beam search.

Both extend partial orders by one vertex at a time and look at the same thing, what every remaining vertex
would cost next. They run on the engine in Python, where a partial graph can be copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from chainrule.elimination._search._problem import Problem
from chainrule.elimination._search._python_engine import PartialGraph, PythonEngine

_AHEAD = 0.5
"""How much of what the remaining vertices would cost next counts when partial orders are compared."""


@dataclass(frozen=True)
class PartialOrder:
    """An order that is not finished.

    Attributes:
        order: the vertices so far.
        cost: what they cost.
        costs: what each remaining vertex would cost next.
        graph: the graph that is left.
    """

    order: tuple[int, ...]
    cost: int
    costs: dict[int, int]
    graph: PartialGraph

    @classmethod
    def empty(cls, engine: PythonEngine) -> PartialOrder:
        graph = engine.graph()
        return cls((), 0, {v: graph.cost(v) for v in engine.problem.eliminable}, graph)

    def extended(self, vertex: int) -> PartialOrder:
        """The partial order with one more vertex."""
        graph = self.graph.copy()
        near = graph.predecessors[vertex] | graph.successors[vertex]
        cost = graph.eliminate(vertex)
        costs = {
            v: graph.cost(v) if near >> v & 1 else c for v, c in self.costs.items() if v != vertex
        }
        return PartialOrder((*self.order, vertex), self.cost + cost, costs, graph)

    @property
    def outlook(self) -> float:
        """What has been paid, and a share of what is in sight."""
        return self.cost + _AHEAD * sum(self.costs.values())


def relative_markowitz(engine: PythonEngine) -> list[int]:
    """Always the vertex whose cost is furthest below (inputs it depends on) × (outputs that depend on it).

    That product is what the vertex costs where everything before it or everything after it is gone; a
    vertex with many of both is cheap now, or never again.
    """
    inputs, outputs = _reach(engine.problem)
    partial = PartialOrder.empty(engine)
    while partial.costs:
        engine.check_time()
        gains = {v: c - inputs[v] * outputs[v] for v, c in partial.costs.items()}
        partial = partial.extended(min(gains, key=gains.__getitem__))
    return list(partial.order)


def _reach(problem: Problem) -> tuple[list[int], list[int]]:
    """Per vertex, how many inputs reach it and how many outputs it reaches."""
    before = [1 << v if v in set(problem.inputs) else 0 for v in range(problem.size)]
    after = [1 << v if v in set(problem.outputs) else 0 for v in range(problem.size)]
    # Edges go from smaller to larger depth, whatever the numbers; repeat until nothing changes.
    changed = True
    while changed:
        changed = False
        for source, target, _ in problem.edges:
            grown = before[target] | before[source], after[source] | after[target]
            changed |= grown != (before[target], after[source])
            before[target], after[source] = grown
    return [mask.bit_count() for mask in before], [mask.bit_count() for mask in after]


def beam(engine: PythonEngine, width: int) -> list[int]:
    """The best of the orders that stay among the `width` most promising partial ones at every length.

    Partial orders of the same vertices leave the same graph: only the cheapest of them is kept.
    """
    kept = [PartialOrder.empty(engine)]
    for _ in engine.problem.eliminable:
        grown: dict[frozenset[int], PartialOrder] = {}
        for partial in kept:
            # The cheapest few of each are enough: what is dear now is seldom right next.
            for vertex in sorted(partial.costs, key=partial.costs.__getitem__)[: 2 * width]:
                engine.check_time()
                candidate = partial.extended(vertex)
                key = frozenset(candidate.order)
                if key not in grown or candidate.cost < grown[key].cost:
                    grown[key] = candidate
        kept = sorted(grown.values(), key=lambda partial: partial.outlook)[:width]
    return list(min(kept, key=lambda partial: partial.cost).order)

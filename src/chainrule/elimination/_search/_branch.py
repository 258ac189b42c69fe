"""Branch and bound: the best order of a small graph, with the proof that there is none better.

Orders are extended depth first, cheap vertices first. A branch is cut off when what it has cost, plus the
least that every remaining vertex can cost (see `_bound`; nothing where that bound does not hold), is no less
than the best order known, or when the same set of vertices was reached more cheaply before: what is left of
the graph depends on the set alone.
"""

from __future__ import annotations

import time

from chainrule.elimination._search._bound import vertex_bounds
from chainrule.elimination._search._construct import PartialOrder
from chainrule.elimination._search._python_engine import PythonEngine


def branch_and_bound(
    engine: PythonEngine, order: list[int], cost: int, *, until: float, most: int = 200_000
) -> tuple[list[int], bool]:
    """The cheapest order found, and whether it is proven to be.

    Args:
        engine: with the graph.
        order: the best order known.
        cost: its cost.
        until: when to stop, on the clock of `time.perf_counter`.
        most: how many partial orders to look at.
    """
    tree = _Tree(engine, order, cost, until, most)
    tree.visit(PartialOrder.empty(engine), 0)
    return tree.order, not tree.is_cut_short


class _Tree:
    def __init__(
        self, engine: PythonEngine, order: list[int], cost: int, until: float, most: int
    ) -> None:
        self.order = order
        self.is_cut_short = False
        self._cost, self._until, self._most = cost, until, most
        self._least = vertex_bounds(engine.problem)
        self._reached: dict[int, int] = {}

    def visit(self, partial: PartialOrder, gone: int) -> None:
        if not partial.costs:
            if partial.cost < self._cost:
                self.order, self._cost = list(partial.order), partial.cost
            return
        remaining = sum(self._least[v] for v in partial.costs)
        for vertex in sorted(partial.costs, key=partial.costs.__getitem__):
            total = partial.cost + partial.costs[vertex]
            if total + remaining - self._least[vertex] >= self._cost:
                continue
            grown = gone | 1 << vertex
            if self._reached.get(grown, self._cost) <= total:
                continue
            self._reached[grown] = total
            if len(self._reached) > self._most or time.perf_counter() > self._until:
                self.is_cut_short = True
            if self.is_cut_short:
                return
            self.visit(partial.extended(vertex), grown)

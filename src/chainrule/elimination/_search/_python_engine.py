"""Evaluating orders in plain Python: neighbourhoods are the bits of integers.

The reference for the engine in C, and what runs where no compiler is found.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence

from chainrule.elimination._search._problem import ZERO, OutOfBudgetError, Problem


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


_PRODUCT = 40
"""A product of structures that is not known yet takes as long as so many that are."""

_COPIED = 16
"""So many edges are copied in the time of one product."""


class PartialGraph:
    """The graph while vertices are being eliminated. `copy` is cheap."""

    __slots__ = ("_engine", "edges", "predecessors", "successors")

    def __init__(self, engine: PythonEngine) -> None:
        self._engine = engine
        self.predecessors = [0] * engine.problem.size
        self.successors = [0] * engine.problem.size
        self.edges: dict[tuple[int, int], int] = {}
        for source, target, structure in engine.problem.edges:
            self.edges[source, target] = structure
            self.successors[source] |= 1 << target
            self.predecessors[target] |= 1 << source

    def copy(self) -> PartialGraph:
        self._engine.work += len(self.edges) // _COPIED
        new = object.__new__(PartialGraph)
        new._engine = self._engine
        new.predecessors = self.predecessors.copy()
        new.successors = self.successors.copy()
        new.edges = self.edges.copy()
        return new

    def cost(self, vertex: int) -> int:
        """What eliminating a vertex would cost now."""
        before, after = self.predecessors[vertex], self.successors[vertex]
        pairs = before.bit_count() * after.bit_count()
        if self._engine.problem.is_scalar:
            return pairs
        self._engine.work += pairs
        return sum(
            cost
            for target in _bits(after)
            for source in _bits(before)
            for _, cost in self._products(source, vertex, target)
        )

    def _products(self, source: int, vertex: int, target: int) -> Iterator[tuple[int, int]]:
        """Structure and cost of the product, and of adding it to an edge that is there already."""
        made, cost = self._engine.product(self.edges[vertex, target], self.edges[source, vertex])
        if made == ZERO:
            yield ZERO, cost
            return
        present = self.edges.get((source, target))
        if present is None:
            yield made, cost
        else:
            merged, extra = self._engine.sum(present, made)
            yield merged, cost + extra

    def eliminate(self, vertex: int) -> int:
        """Eliminate a vertex; what it cost."""
        self._engine.evaluations += 1
        before, after = self.predecessors[vertex], self.successors[vertex]
        self._engine.work += 1 + before.bit_count() * after.bit_count()
        total = self._join(before, vertex, after)
        self._disconnect(vertex, before, after)
        return total

    def eliminate_edge(self, vertex: int, neighbour: int) -> int:
        """Eliminate only the edge between a vertex and a neighbour; what it cost."""
        before, after, bit = self.predecessors[vertex], self.successors[vertex], 1 << neighbour
        if after & bit:
            total = self._join(before, vertex, bit)
            self.successors[vertex] &= ~bit
            self.predecessors[neighbour] &= ~(1 << vertex)
        elif before & bit:
            total = self._join(bit, vertex, after)
            self.predecessors[vertex] &= ~bit
            self.successors[neighbour] &= ~(1 << vertex)
        else:
            total = 0
        return total

    def _join(self, sources: int, vertex: int, targets: int) -> int:
        total = 0
        for target in _bits(targets):
            for source in _bits(sources):
                for structure, cost in self._products(source, vertex, target):
                    total += cost
                    if structure != ZERO:
                        self.edges[source, target] = structure
                        self.successors[source] |= 1 << target
                        self.predecessors[target] |= 1 << source
        return total

    def _disconnect(self, vertex: int, before: int, after: int) -> None:
        bit = 1 << vertex
        for target in _bits(after):
            self.predecessors[target] &= ~bit
        self.successors[vertex] = 0
        if vertex not in self._engine.problem.kept:
            for source in _bits(before):
                self.successors[source] &= ~bit
            self.predecessors[vertex] = 0


class PythonEngine:
    """Costs of orders, greedy construction and improvement. Deterministic for a seed."""

    sweeps_per_call = 1
    exact_width = 8

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.deadline = math.inf
        self.most_work = math.inf
        """As `deadline`, in pairs of edges looked at, which are counted in `work`."""
        self.work = 0
        self.evaluations = 0
        self._products: dict[tuple[int, int], tuple[int, int]] = {}
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}

    def product(self, out_edge: int, in_edge: int) -> tuple[int, int]:
        """The algebra's product, remembered."""
        key = out_edge, in_edge
        if key not in self._products:
            self.check_time()
            self.work += _PRODUCT
            self._products[key] = self.problem.algebra.product(out_edge, in_edge)
        return self._products[key]

    def sum(self, first: int, second: int) -> tuple[int, int]:
        """The algebra's sum, remembered."""
        key = first, second
        if key not in self._sums:
            self.work += _PRODUCT
            self._sums[key] = self.problem.algebra.sum(first, second)
        return self._sums[key]

    def check_time(self) -> None:
        """Raise `OutOfBudgetError` when the time is up, or too much was done."""
        if self.work > self.most_work or time.perf_counter() > self.deadline:
            raise OutOfBudgetError

    def graph(self) -> PartialGraph:
        """The graph before anything is eliminated."""
        return PartialGraph(self)

    def costs(self, order: Sequence[int]) -> list[int]:
        """What every step of an order costs."""
        graph = PartialGraph(self)
        return [graph.eliminate(vertex) for vertex in order]

    def greedy(self, look_ahead: float, noise: float, seed: int) -> list[int]:
        """Eliminate next the vertex with the smallest score.

        The score is the cost of the vertex plus `look_ahead` × the change of the summed costs of its
        neighbours, times a random factor of relative size `noise`; ties are broken at random.
        """
        rng = random.Random(seed)
        graph = PartialGraph(self)
        remaining = set(self.problem.eliminable)
        order: list[int] = []
        while remaining:
            try:
                self.check_time()
                scores = {v: self._score(graph, v, look_ahead) for v in sorted(remaining)}
            except OutOfBudgetError:
                raise OutOfBudgetError(order) from None
            spread = {v: (s * (1 + noise * rng.random()), rng.random()) for v, s in scores.items()}
            vertex = min(spread, key=spread.__getitem__)
            graph.eliminate(vertex)
            remaining.remove(vertex)
            order.append(vertex)
        return order

    def _score(self, graph: PartialGraph, vertex: int, look_ahead: float) -> float:
        cost = float(graph.cost(vertex))
        if not look_ahead:
            return cost
        self.check_time()  # Copying a graph takes as long as its size.
        near = graph.predecessors[vertex] | graph.successors[vertex]
        neighbours = [v for v in _bits(near) if v in self._eliminable]
        trial = graph.copy()
        trial.eliminate(vertex)
        change = sum(trial.cost(v) - graph.cost(v) for v in neighbours)
        return cost + look_ahead * change

    @property
    def _eliminable(self) -> frozenset[int]:
        return self.problem._inner

    def anneal(
        self,
        order: Sequence[int],
        temperatures: Sequence[float],
        window: int,
        tries: int,
        seed: int,
    ) -> tuple[list[int], list[int]]:
        """One pass per temperature: the order after the last, and the best after any."""
        rng = random.Random(seed)
        current, costs = list(order), self.costs(order)
        best, lowest = current.copy(), sum(costs)
        for temperature in temperatures:
            self._pass(current, costs, temperature, window, tries, rng)
            if sum(costs) < lowest:
                best, lowest = current.copy(), sum(costs)
        return current, best

    def _pass(
        self, order: list[int], costs: list[int], temperature: float, window: int, tries: int,
        rng: random.Random,
    ) -> None:  # fmt: skip
        """Walk through the order once, changing it in place.

        At every position, `tries` times: move the vertex there at most `window` places later, or bring
        one from at most `window` places later here. Costs outside the window do not change.
        """
        graph = PartialGraph(self)
        for position in range(len(order) - 1):
            self.check_time()
            for _ in range(tries):
                last = min(position + 1 + rng.randrange(window), len(order) - 1)
                segment = order[position : last + 1]
                if rng.random() < 0.5:
                    moved = [*segment[1:], segment[0]]
                else:
                    moved = [segment[-1], *segment[:-1]]
                trial = graph.copy()
                new = [trial.eliminate(vertex) for vertex in moved]
                change = sum(new) - sum(costs[position : last + 1])
                if change <= 0 or (temperature and rng.random() < math.exp(-change / temperature)):
                    order[position : last + 1] = moved
                    costs[position : last + 1] = new
            graph.eliminate(order[position])

    def windows(self, order: Sequence[int], width: int) -> list[int]:
        """Every window of `width` neighbours put into its best order, from left to right."""
        order = list(order)
        graph = PartialGraph(self)
        for position in range(len(order) - 1):
            self.check_time()
            segment = order[position : position + width]
            order[position : position + width] = self._best_segment(graph, segment)
            graph.eliminate(order[position])
        return order

    def _best_segment(self, graph: PartialGraph, segment: list[int]) -> list[int]:
        """Dynamic programming over subsets: the graph after a set does not depend on its order."""
        best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
        graphs = {0: graph}
        for _ in segment:
            next_best: dict[int, tuple[int, list[int]]] = {}
            next_graphs: dict[int, PartialGraph] = {}
            for chosen, (so_far, path) in best.items():
                for index, vertex in enumerate(segment):
                    if chosen >> index & 1:
                        continue
                    grown = chosen | 1 << index
                    total = so_far + graphs[chosen].cost(vertex)
                    if grown not in next_best or total < next_best[grown][0]:
                        next_best[grown] = (total, [*path, vertex])
                    if grown not in next_graphs:
                        next_graphs[grown] = graphs[chosen].copy()
                        next_graphs[grown].eliminate(vertex)
            best, graphs = next_best, next_graphs
        ((total, path),) = best.values()
        current = graph.copy()
        unchanged = sum(current.eliminate(vertex) for vertex in segment)
        return path if total < unchanged else segment

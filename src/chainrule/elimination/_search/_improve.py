"""Making orders: built from the front, improved in windows, proven by branch and bound, split into edges.

Everything here evaluates orders on a `PartialGraph` and is deterministic for a seed.

The fact it stands on: the graph that is left after eliminating a *set* of vertices does not depend on the
order in which they went. So a change inside a window of an order changes the costs inside that window only,
and the best order of a window is found by dynamic programming over its subsets.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence

from chainrule.elimination._search._partial_graph import EVERY, PartialGraph
from chainrule.elimination._search._problem import OrderStep, OutOfBudgetError, vertex_bounds


def greedy(graph: PartialGraph, look_ahead: float, noise: float, seed: int) -> list[int]:
    """Eliminate next the vertex with the smallest score.

    The score is the cost of the vertex plus `look_ahead` × the change of the summed costs of its
    neighbours, times a random factor of relative size `noise`; ties are broken at random.

    Raises:
        OutOfBudgetError: with the part of the order that was made.
    """
    rng = random.Random(seed)
    graph.reset()
    remaining = list(graph.problem.eliminable)
    order: list[int] = []
    while remaining:
        try:
            graph.check_budget()
            scores = graph.scores(remaining, look_ahead)
        except OutOfBudgetError:
            raise OutOfBudgetError(order) from None
        spread = [(score * (1 + noise * rng.random()), rng.random()) for score in scores]
        vertex = remaining.pop(min(range(len(spread)), key=spread.__getitem__))
        graph.eliminate(vertex)
        order.append(vertex)
    return order


def anneal(
    graph: PartialGraph,
    order: Sequence[int],
    temperatures: Sequence[float],
    window: int,
    tries: int,
    seed: int,
) -> tuple[list[int], list[int]]:
    """One annealing pass per temperature: the order after the last, and the best after any."""
    costs = graph.vector(graph.order_costs(order))
    current = graph.vector(order)
    best, lowest = list(order), sum(costs)
    for number, temperature in enumerate(temperatures):
        graph.anneal(current, costs, temperature, window, tries, seed * len(temperatures) + number)
        if sum(costs) < lowest:
            best, lowest = list(map(int, current)), sum(costs)
    return list(map(int, current)), best


def order_windows(graph: PartialGraph, order: Sequence[int], width: int) -> list[int]:
    """Every window of `width` neighbours put into its best order, from left to right."""
    order = list(order)
    graph.reset()
    for position in range(len(order) - 1):
        graph.check_budget()
        segment = order[position : position + width]
        order[position : position + width] = _best_order(segment, graph.subset_costs(segment))
        graph.eliminate(order[position])
    return order


def _best_order(segment: list[int], costs: Sequence[int]) -> list[int]:
    """Dynamic programming over subsets; as it is, if nothing is cheaper."""
    # T(S) = min over k in S of T(S without k) + cost(k after S without k): the last vertex of the best order
    # of S, for all S by rising numbers, so that smaller sets come first. `costs` has cost(k after S) at [S ·
    # width + k], because what is left of the graph depends on the set only.
    width = len(segment)
    totals, last = [0] * (1 << width), [0] * (1 << width)
    for subset in range(1, 1 << width):
        totals[subset], last[subset] = min(
            (totals[without] + costs[without * width + k], k)
            for k in range(width)
            if (without := subset & ~(1 << k)) != subset
        )
    everything = (1 << width) - 1
    if totals[everything] >= sum(costs[((1 << k) - 1) * width + k] for k in range(width)):
        return segment
    chosen, subset = [], everything
    while subset:
        chosen.append(segment[last[subset]])
        subset &= ~(1 << last[subset])
    return chosen[::-1]


_MOST_PARTIAL_ORDERS = 200_000
"""That branch and bound remembers."""


def branch_and_bound(
    graph: PartialGraph, order: Sequence[int], cost: int, *, until: float
) -> tuple[list[int], bool]:
    """The cheapest order found, and whether it is proven to be.

    Orders are extended depth first, cheap vertices first. A branch is cut off when what it has cost, plus the
    least that every remaining vertex can cost (`vertex_bounds`; 0 where that bound does not hold), is no less
    than the best order known, or when the same set of vertices was reached more cheaply before.

    Args:
        graph: of the problem.
        order: the best order known.
        cost: its cost.
        until: when to stop, on the clock of `time.perf_counter`.
    """
    graph.reset()
    tree = _Tree(graph, list(order), cost, until)
    vertices = graph.problem.eliminable
    tree.visit((), 0, 0, dict(zip(vertices, graph.costs(vertices), strict=True)))
    return tree.order, not tree.is_cut_short


class _Tree:
    def __init__(self, graph: PartialGraph, order: list[int], cost: int, until: float) -> None:
        self.order = order
        self.is_cut_short = False
        self._graph, self._cost, self._until = graph, cost, until
        self._least = vertex_bounds(graph.problem)
        # A set of vertices, as bits → the least that eliminating it has cost, in any order.
        self._reached: dict[int, int] = {}

    def visit(self, order: tuple[int, ...], gone: int, cost: int, costs: dict[int, int]) -> None:
        if not costs:
            if cost < self._cost:
                self.order, self._cost = list(order), cost
            return
        remaining = sum(self._least[v] for v in costs)
        for vertex in sorted(costs, key=costs.__getitem__):
            total = cost + costs[vertex]
            if total + remaining - self._least[vertex] >= self._cost:
                continue
            grown = gone | 1 << vertex
            if self._reached.get(grown, self._cost) <= total:
                continue
            self._reached[grown] = total
            if len(self._reached) > _MOST_PARTIAL_ORDERS or time.perf_counter() > self._until:
                self.is_cut_short = True
            if self.is_cut_short:
                return
            with self._graph.trial():
                left = self._eliminate(vertex, costs)
                self.visit((*order, vertex), grown, total, left)

    def _eliminate(self, vertex: int, costs: dict[int, int]) -> dict[int, int]:
        """What each remaining vertex would cost after a vertex: only its neighbours cost something else."""
        before, after = self._graph.neighbours(vertex)
        self._graph.eliminate(vertex)
        near = [v for v in dict.fromkeys((*before, *after)) if v in costs]
        left = {v: cost for v, cost in costs.items() if v != vertex}
        left.update(zip(near, self._graph.costs(near), strict=True))
        return left


def split_edges(
    graph: PartialGraph, order: Sequence[int], *, budget_s: float
) -> tuple[list[OrderStep], int]:
    """An order with single edges put before their vertices while that pays, and its cost.

    Eliminating a vertex multiplies all its in-edges with all its out-edges at the same time. Taking one
    out-edge (or in-edge) ahead of the others can be cheaper: its products fall onto edges that exist already,
    and the others profit from what happens to the graph in between. Every path through the vertex so gets its
    own place in the order of multiplication.

    Hill climbing: walk through the order; at every position try each edge that is there of a vertex that
    is still to come, and keep the first that makes the whole cheaper. A keyboard interrupt ends it early.
    """
    steps = list[OrderStep](order)
    with contextlib.suppress(KeyboardInterrupt):
        search = _Splitting(graph, steps, time.perf_counter() + budget_s)
        while search.walk():
            pass
    graph.reset()
    return steps, sum(_take(graph, steps))


class _Splitting:
    """Changes the steps that it is given."""

    def __init__(self, graph: PartialGraph, steps: list[OrderStep], deadline: float) -> None:
        self._graph, self._deadline = graph, deadline
        self._steps = steps
        graph.reset()
        self._costs = _take(graph, steps)

    @property
    def _is_over(self) -> bool:
        return time.perf_counter() > self._deadline

    def walk(self) -> bool:
        """One walk through the order; whether it found anything and there is time for another."""
        self._graph.reset()
        improved, position = False, 0
        while position < len(self._steps) and not self._is_over:
            improved |= self._split_here(position)
            _take(self._graph, [self._steps[position]])
            position += 1
        return improved and not self._is_over

    def _split_here(self, position: int) -> bool:
        rest, cost = self._steps[position:], sum(self._costs[position:])
        for edge in self._edges(rest):
            if self._is_over:
                return False
            with self._graph.trial():
                costs = _take(self._graph, [edge, *rest])
            if sum(costs) < cost:
                self._steps[position:] = [edge, *rest]
                self._costs[position:] = costs
                return True
        return False

    def _edges(self, rest: Sequence[OrderStep]) -> Iterator[OrderStep]:
        """Edges whose vertex has others beside it on that side; taking an only one is taking the vertex."""
        for vertex in [step for step in rest if isinstance(step, int)]:
            operands, readers = self._graph.neighbours(vertex)
            if len(readers) > 1:
                yield from ((vertex, reader) for reader in sorted(readers))
            # An output keeps its own edges: there is nothing to take away on that side.
            if len(operands) > 1 and vertex not in self._graph.problem.kept:
                yield from ((vertex, operand) for operand in sorted(operands))


def _take(graph: PartialGraph, steps: Sequence[OrderStep]) -> list[int]:
    """Carry out steps; what each costs."""
    pairs = [step if isinstance(step, tuple) else (step, EVERY) for step in steps]
    return graph.eliminate_all([v for v, _ in pairs], [end for _, end in pairs])

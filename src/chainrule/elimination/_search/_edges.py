"""Beyond vertices: eliminating single edges first, where that makes an order cheaper.

Eliminating a vertex multiplies all its in-edges with all its out-edges at the same time. Taking one out-edge
(or in-edge) ahead of the others can be cheaper: its products fall onto edges that exist already, and the
others profit from what happens to the graph in between. Every path through the vertex so gets its own place
in the order of multiplication.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from chainrule.elimination._search._problem import Problem
from chainrule.elimination._search._python_engine import PartialGraph, PythonEngine

Step = int | tuple[int, int]
"""A vertex, or a vertex and the neighbour whose edge is eliminated alone."""


def split_edges(
    problem: Problem, order: Sequence[int], *, budget_s: float
) -> tuple[list[Step], int]:
    """An order with single edges put before their vertices while that pays, and its cost.

    Hill climbing: walk through the order; at every position try each edge that is there of a vertex that
    is still to come, and keep the first that makes the whole cheaper. A keyboard interrupt ends it early.
    """
    engine, steps = PythonEngine(problem), list[Step](order)
    with contextlib.suppress(KeyboardInterrupt):
        search = _Splitting(engine, steps, time.perf_counter() + budget_s)
        while search.walk():
            pass
    return steps, sum(_run(engine.graph(), steps))


class _Splitting:
    """Changes the steps that it is given."""

    def __init__(self, engine: PythonEngine, steps: list[Step], deadline: float) -> None:
        self._engine, self._deadline = engine, deadline
        self._steps = steps
        self._costs = _run(engine.graph(), steps)

    @property
    def _is_over(self) -> bool:
        return time.perf_counter() > self._deadline

    def walk(self) -> bool:
        """One walk through the order; whether it found anything and there is time for another."""
        graph, improved, position = self._engine.graph(), False, 0
        while position < len(self._steps) and not self._is_over:
            improved |= self._split_here(graph, position)
            _take(graph, self._steps[position])
            position += 1
        return improved and not self._is_over

    def _split_here(self, graph: PartialGraph, position: int) -> bool:
        rest, cost = self._steps[position:], sum(self._costs[position:])
        for edge in self._edges(graph, rest):
            if self._is_over:
                return False
            trial = graph.copy()
            costs = [_take(trial, edge)]
            for step in rest:
                costs.append(_take(trial, step))
                if sum(costs) >= cost:
                    break
            else:
                self._steps[position:] = [edge, *rest]
                self._costs[position:] = costs
                return True
        return False

    def _edges(self, graph: PartialGraph, rest: Sequence[Step]) -> Iterator[Step]:
        """Edges whose vertex has others beside it on that side; taking an only one is taking the vertex."""
        for vertex in [step for step in rest if isinstance(step, int)]:
            readers, operands = graph.successors[vertex], graph.predecessors[vertex]
            if readers.bit_count() > 1:
                yield from ((vertex, reader) for reader in _positions(readers))
            # An output keeps its own edges: there is nothing to take away on that side.
            if operands.bit_count() > 1 and vertex not in self._engine.problem.kept:
                yield from ((vertex, operand) for operand in _positions(operands))


def _positions(mask: int) -> Iterator[int]:
    return (k for k in range(mask.bit_length()) if mask >> k & 1)


def _take(graph: PartialGraph, step: Step) -> int:
    return graph.eliminate_edge(*step) if isinstance(step, tuple) else graph.eliminate(step)


def _run(graph: PartialGraph, steps: Sequence[Step]) -> list[int]:
    return [_take(graph, step) for step in steps]

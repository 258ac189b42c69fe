"""What is searched over: a graph whose edges have structures, their algebra, and a lower bound."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

ZERO = -1
"""The structure of a product that has no entry: no edge comes of it."""


class OutOfBudgetError(Exception):
    """A search has used its time, or met more structures than it has room for; never leaves this package.

    Attributes:
        partial: the first vertices of the order that was being built.
    """

    def __init__(self, partial: Iterable[int] = ()) -> None:
        super().__init__()
        self.partial = tuple(partial)


class Algebra(Protocol):
    """Products and sums of edge structures, which are numbered from 0.

    Products and sums must be pure: every answer is remembered.
    """

    def terms(self, edge: int) -> int:
        """Terms of a structure: finding a product or a sum takes time for every pair of them."""
        ...

    def product(self, out_edge: int, in_edge: int) -> tuple[int, int]:
        """Structure of the product (`ZERO` when it has no entry) and its cost."""
        ...

    def sum(self, first: int, second: int) -> tuple[int, int]:
        """Structure of the sum and its cost."""
        ...


class ScalarAlgebra:
    """Every edge is a number: a product costs one multiplication, a sum nothing that is counted."""

    def terms(self, edge: int) -> int:
        return 1

    def product(self, out_edge: int, in_edge: int) -> tuple[int, int]:
        return 0, 1

    def sum(self, first: int, second: int) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True)
class Problem:
    """A graph to eliminate.

    Attributes:
        size: number of vertices: inputs, intermediates and outputs, numbered from 0.
        edges: (source, target, structure) of every edge.
        eliminable: the vertices an order has to contain, in program order.
        kept: those of them that are outputs too: eliminating one keeps its in-edges.
        algebra: the structures.
        is_scalar: every product costs one, always; the min-cut bound holds.
    """

    size: int
    edges: tuple[tuple[int, int, int], ...]
    eliminable: tuple[int, ...]
    kept: frozenset[int]
    algebra: Algebra
    is_scalar: bool = False

    @classmethod
    def scalar(
        cls, size: int, edges: Iterable[tuple[int, int]], eliminable: Iterable[int],
        kept: Iterable[int] = (),
    ) -> Problem:  # fmt: skip
        """A problem in which every edge is a number."""
        labelled = tuple((source, target, 0) for source, target in edges)
        return cls(
            size, labelled, tuple(eliminable), frozenset(kept), ScalarAlgebra(), is_scalar=True
        )

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Vertices without in-edges that are not eliminated."""
        targets = {target for _, target, _ in self.edges}
        return tuple(v for v in range(self.size) if v not in targets and v not in self.inner)

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Vertices that stay at the end and have in-edges."""
        targets = {target for _, target, _ in self.edges}
        return tuple(v for v in targets if v not in self.inner or v in self.kept)

    @cached_property
    def inner(self) -> frozenset[int]:
        """The eliminable vertices as a set."""
        return frozenset(self.eliminable)


def lower_bound(problem: Problem, *, until: float = math.inf) -> int | None:
    """A lower bound for scalar vertex elimination; `None` when the problem is not scalar.

    When vertex v is eliminated, its in-neighbours separate it from the inputs and its out-neighbours
    separate it from the outputs, in every order. So it costs at least mincut(inputs → v) · mincut(v →
    outputs),
    where a cut is a set of vertices; the sum over all vertices bounds every order from below.

    Args:
        problem: the graph.
        until: when to stop, on the clock of `time.perf_counter`; a bound of fewer vertices holds too.
    """
    return sum(vertex_bounds(problem, until=until).values()) if problem.is_scalar else None


def vertex_bounds(problem: Problem, *, until: float = math.inf) -> dict[int, int]:
    """The least that every vertex can cost, whenever it goes; 0 where that is not known."""
    if not problem.is_scalar:
        return dict.fromkeys(problem.eliminable, 0)
    forward: list[list[int]] = [[] for _ in range(problem.size)]
    backward: list[list[int]] = [[] for _ in range(problem.size)]
    for source, target, _ in problem.edges:
        forward[source].append(target)
        backward[target].append(source)
    bounds = dict.fromkeys(problem.eliminable, 0)
    for v in bounds:
        if time.perf_counter() > until:
            break
        before = _disjoint_paths(backward, v, problem.inputs)
        bounds[v] = before * _disjoint_paths(forward, v, problem.outputs)
    return bounds


def _disjoint_paths(neighbours: list[list[int]], start: int, goals: Iterable[int]) -> int:
    """How many paths from a vertex to any of the goals share no vertex but the start.

    Augmenting paths on the graph with every vertex split in two, (v, 0) where paths enter and (v, 1)
    where they leave; by Menger's theorem the number is the smallest cut.
    """
    ends = set(goals) - {start}
    flow: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    count = 0
    while _augment(neighbours, start, ends, flow):
        count += 1
    return count


def _augment(
    neighbours: list[list[int]], start: int, ends: set[int],
    flow: set[tuple[tuple[int, int], tuple[int, int]]],
) -> bool:  # fmt: skip
    source, sink = (start, 1), (-1, 0)
    came_from: dict[tuple[int, int], tuple[int, int]] = {source: source}
    reverse: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for tail, head in flow:
        reverse.setdefault(head, []).append(tail)
    queue = deque([source])
    while queue:
        node = queue.popleft()
        if node == sink:
            _flip(came_from, source, sink, flow)
            return True
        vertex, side = node
        if side == 1:
            onward = [(other, 0) for other in neighbours[vertex]]
            if vertex in ends:
                onward.append(sink)
        else:
            onward = [(vertex, 1)]
        for other in onward:
            if other not in came_from and (node, other) not in flow:
                came_from[other] = node
                queue.append(other)
        for other in reverse.get(node, ()):
            if other not in came_from:
                came_from[other] = node
                queue.append(other)
    return False


def _flip(came_from: dict, source: tuple[int, int], sink: tuple[int, int], flow: set) -> None:
    node = sink
    while node != source:
        previous = came_from[node]
        if (node, previous) in flow:
            flow.remove((node, previous))
        else:
            flow.add((previous, node))
        node = previous

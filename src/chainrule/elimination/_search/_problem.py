"""What is searched over: a graph whose edges have structures, their algebra, and a lower bound."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from chainrule.elimination._cuts import as_set, minimal_cut, reached

ZERO = -1
"""The structure of a product that has no entry: no edge comes of it."""

OrderStep = int | tuple[int, int]
"""A vertex, or the edge between a vertex and another vertex or input, which is eliminated alone."""


class OutOfBudgetError(Exception):
    """A search has used its time, or met more structures than it has room for; never leaves this package.

    Attributes:
        partial: the first vertices of the order that was being built.
    """

    def __init__(self, partial: Iterable[int] = ()) -> None:
        super().__init__()
        self.partial = tuple(partial)


class CostAlgebra(Protocol):
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
    algebra: CostAlgebra
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
    successors, predecessors = [0] * problem.size, [0] * problem.size
    for source, target, _ in problem.edges:
        successors[source] |= 1 << target
        predecessors[target] |= 1 << source
    inputs, outputs = as_set(problem.inputs), as_set(problem.outputs)
    from_inputs, to_outputs = reached(successors, inputs), reached(predecessors, outputs)
    sizes = [1] * problem.size
    bounds = dict.fromkeys(problem.eliminable, 0)
    for v in bounds:
        if time.perf_counter() > until:
            break
        operands, readers = predecessors[v] & from_inputs, successors[v] & to_outputs
        # Operands and readers are cuts themselves; where there is only one, none is smaller.
        before, after = operands.bit_count(), readers.bit_count()
        if before > 1:
            region = reached(predecessors, operands) & from_inputs
            before = minimal_cut(sizes, successors, inputs, operands, region=region).size
        if after > 1:
            region = reached(successors, readers) & to_outputs
            after = minimal_cut(sizes, successors, readers, outputs, region=region).size
        bounds[v] = before * after
    return bounds

"""What is searched over: a graph whose edges have structures, and the algebra of these structures."""

from __future__ import annotations

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

    Both functions must be pure: the engines remember every answer.
    """

    def product(self, out_edge: int, in_edge: int) -> tuple[int, int]:
        """Structure of the product (`ZERO` when it has no entry) and its cost."""
        ...

    def sum(self, first: int, second: int) -> tuple[int, int]:
        """Structure of the sum and its cost."""
        ...


class ScalarAlgebra:
    """Every edge is a number: a product costs one multiplication, a sum nothing that is counted."""

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
        return tuple(v for v in range(self.size) if v not in targets and v not in self._inner)

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Vertices that stay at the end and have in-edges."""
        targets = {target for _, target, _ in self.edges}
        return tuple(v for v in targets if v not in self._inner or v in self.kept)

    @cached_property
    def _inner(self) -> frozenset[int]:
        return frozenset(self.eliminable)

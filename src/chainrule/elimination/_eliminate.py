"""Vertex elimination, for anything that can be multiplied and added.

Eliminating a node j joins every edge k → j with every edge j → i, c_ki += c_kj · c_ji, and forgets j. A
node that is also an output keeps its own row. The same loop computes blocks with values, structures and
counts; only the algebra differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chainrule._jaxpr import Var
from chainrule.elimination._blocks import add, multiply, product_structure, sum_structure
from chainrule.elimination._graph import Edges, Graph

__all__ = ["STRUCTURES", "VALUES", "Algebra", "Elimination", "eliminate"]


@dataclass(frozen=True)
class Algebra:
    """What an edge carries: how two of them are multiplied and added, and when one is nothing."""

    multiply: Callable[[Any, Any], Any]
    add: Callable[[Any, Any], Any]
    is_zero: Callable[[Any], bool]


STRUCTURES = Algebra(product_structure, sum_structure, lambda structure: structure.is_zero)
VALUES = Algebra(multiply, add, lambda block: block.structure.is_zero)


def eliminate(
    graph: Graph, edges: Edges, order: Iterable[int], algebra: Algebra = VALUES
) -> dict[Var, dict[Var, Any]]:
    """The edges that are left, output → input → block, after eliminating the vertices in order."""
    elimination = Elimination(graph, edges, algebra)
    for vertex in order:
        elimination.eliminate(vertex)
    return elimination.rows


class Elimination:
    """A graph in the middle of being eliminated.

    Attributes:
        rows: result → operand → block, for the edges that are left.
        readers: operand → results that have an edge to it, in a fixed order.
    """

    def __init__(self, graph: Graph, edges: Edges, algebra: Algebra) -> None:
        self.rows: Edges = {result: dict(row) for result, row in edges.items()}
        self.readers: dict[Var, dict[Var, None]] = {}
        self._graph = graph
        self._algebra = algebra
        for result, row in self.rows.items():
            for operand in row:
                self.readers.setdefault(operand, {})[result] = None

    def eliminate(self, vertex: int) -> None:
        """Join the edges into a vertex with those out of it."""
        for node in self._graph.nodes(vertex):
            self._eliminate_node(node)

    def _eliminate_node(self, node: Var) -> None:
        incoming = self.rows.get(node, {})
        for reader in self.readers.pop(node, {}):
            outer = self.rows[reader].pop(node)
            for operand, inner in incoming.items():
                self._put(reader, operand, self._algebra.multiply(outer, inner))
        if node not in self._graph.outputs:
            for operand in self.rows.pop(node, {}):
                self.readers[operand].pop(node, None)

    def _put(self, reader: Var, operand: Var, product: Any) -> None:
        row = self.rows[reader]
        if self._algebra.is_zero(product):
            return
        if operand in row:
            row[operand] = self._algebra.add(row[operand], product)
        else:
            row[operand] = product
            self.readers.setdefault(operand, {})[reader] = None

"""Vertex elimination, for anything that can be multiplied and added.

Eliminating a node j joins every edge k → j with every edge j → i, c_ki += c_kj · c_ji, and forgets j. A
node that is also an output keeps its own row. The same loop computes blocks with values, structures and
counts; only the algebra differs.

A step of an order is a vertex, or a pair (j, k): only the products between j's edges and its edge to or from
vertex k are taken, and that edge is forgotten. With k reading j this is called back-elimination of the edge
j → k, the other way round front-elimination. Inputs are numbered 0, -1, -2, …
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chainrule._jaxpr import Var
from chainrule.elimination._blocks import add, multiply, product_structure, sum_structure
from chainrule.elimination._graph import Edges, Graph

Step = int | tuple[int, int]
"""A vertex, or the edge between a vertex and another vertex or input."""


@dataclass(frozen=True)
class Algebra:
    """What an edge carries: how two of them are multiplied and added, and when one is nothing."""

    multiply: Callable[[Any, Any], Any]
    add: Callable[[Any, Any], Any]
    is_zero: Callable[[Any], bool]


STRUCTURES = Algebra(product_structure, sum_structure, lambda structure: structure.is_zero)
VALUES = Algebra(multiply, add, lambda block: block.structure.is_zero)


def eliminate(
    graph: Graph, edges: Edges, order: Iterable[Step], algebra: Algebra = VALUES
) -> dict[Var, dict[Var, Any]]:
    """The edges that are left, output → input → block, after eliminating the vertices in order."""
    elimination = Elimination(graph, edges, algebra)
    for step in order:
        elimination.eliminate(step)
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

    def eliminate(self, step: Step) -> None:
        """Join the edges into a vertex with those out of it, all of them or those of one neighbour."""
        if isinstance(step, tuple):
            vertex, neighbour = step
            for node in self._graph.nodes(vertex):
                for end in self._graph.ends(neighbour):
                    self._eliminate_edge(node, end)
        else:
            for node in self._graph.nodes(step):
                self._eliminate_node(node)

    def _eliminate_edge(self, node: Var, end: Var) -> None:
        """Join the edge between a node and its neighbour with the edges on the node's other side."""
        if node in self.rows.get(end, {}):
            outer = self.rows[end].pop(node)
            self.readers[node].pop(end)
            for operand, inner in self.rows.get(node, {}).items():
                self._put(end, operand, self._algebra.multiply(outer, inner))
        elif end in self.rows.get(node, {}):
            inner = self.rows[node].pop(end)
            self.readers[end].pop(node)
            for reader in self.readers.get(node, {}):
                self._put(reader, end, self._algebra.multiply(self.rows[reader][node], inner))

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

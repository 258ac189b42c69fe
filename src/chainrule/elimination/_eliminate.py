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

__all__ = ["STRUCTURES", "VALUES", "Algebra", "eliminate"]


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
    rows = {result: dict(row) for result, row in edges.items()}
    readers: dict[Var, dict[Var, None]] = {}
    for result, row in rows.items():
        for operand in row:
            readers.setdefault(operand, {})[result] = None
    for vertex in order:
        for node in graph.nodes(vertex):
            _eliminate_node(node, rows, readers, algebra, keep=node in graph.outputs)
    return rows


def _eliminate_node(
    node: Var, rows: Edges, readers: dict[Var, dict[Var, None]], algebra: Algebra, *, keep: bool
) -> None:
    incoming = rows.get(node, {})
    for reader in readers.pop(node, {}):
        row = rows[reader]
        outer = row.pop(node)
        for operand, inner in incoming.items():
            product = algebra.multiply(outer, inner)
            if algebra.is_zero(product):
                continue
            if operand in row:
                row[operand] = algebra.add(row[operand], product)
            else:
                row[operand] = product
                readers.setdefault(operand, {})[reader] = None
    if not keep and node in rows:
        for operand in rows.pop(node):
            readers[operand].pop(node, None)

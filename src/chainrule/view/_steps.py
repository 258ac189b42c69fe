"""What happens to a graph when its vertices and edges are eliminated one by one, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chainrule._jaxpr import Var
from chainrule.elimination.internal import STRUCTURES, Edges, Elimination, Graph, OperationCounts
from chainrule.elimination.internal import Step as OrderStep

Blocks = dict[tuple[str, str], str]
"""(operand, result) → the structure of the block on that edge."""


@dataclass(frozen=True)
class Vertex:
    """A node of the graph.

    Attributes:
        key: its number in orders, from 1, as text; for an input its name. An equation with several results
            has several nodes: `3`, `3b`, …
        operation: the primitive; empty for inputs.
        is_output: whether a row of the Jacobian belongs to it.
    """

    key: str
    operation: str
    is_output: bool


@dataclass(frozen=True)
class Product:
    """c[reader, operand] = c[reader, via] · c[via, operand], or += where the edge was there before."""

    reader: str
    via: str
    operand: str
    is_added: bool

    def __str__(self) -> str:
        sign = "+=" if self.is_added else "="
        return (
            f"c[{self.reader},{self.operand}] {sign} "
            f"c[{self.reader},{self.via}]·c[{self.via},{self.operand}]"
        )


@dataclass(frozen=True)
class Step:
    """The elimination of one vertex, or of one edge ahead of its vertex.

    Attributes:
        vertex: its number.
        multiplications: what it costs, by the convention of the literature.
        products: the chain rule, edge by edge.
        edges: those that are left afterwards, (operand, result) → structure of the block.
        edge: (operand, result) of the edge that is eliminated; `None` where the whole vertex is.
    """

    vertex: int
    multiplications: int
    products: tuple[Product, ...]
    edges: Blocks = field(repr=False)
    edge: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        """What is eliminated: `3`, or `2 → 3` for an edge."""
        return str(self.vertex) if self.edge is None else " → ".join(self.edge)


def name_nodes(graph: Graph, inputs: Sequence[str]) -> dict[Any, Vertex]:
    """Every variable of the graph, in the order of the program, as a node with a name."""
    nodes = {
        var: Vertex(name, "", var in graph.outputs)
        for var, name in zip(graph.inputs, inputs, strict=True)
    }
    for number in graph.partials:
        operation = graph.equation(number).primitive.name
        shown = [var for var in graph.nodes(number) if var in graph.structures]
        for k, var in enumerate(shown):
            key = str(number) if k == 0 else f"{number}{_suffix(k)}"
            nodes[var] = Vertex(key, operation, var in graph.outputs)
    return nodes


def _suffix(position: int) -> str:
    return chr(ord("a") + position) if position < 26 else f".{position}"


def blocks_of(edges: Edges, nodes: Mapping[Var, Vertex]) -> Blocks:
    """The edges by name."""
    return {
        (nodes[operand].key, nodes[result].key): _kind(structure)
        for result, row in edges.items()
        for operand, structure in row.items()
    }


def _kind(structure: Any) -> str:
    """The structure without its shape; nothing for an ordinary number."""
    kind = str(structure).split(": ", 1)[1]
    return "" if kind == "scalar" else kind


def trace_steps(
    graph: Graph, order: Sequence[OrderStep], counts: OperationCounts, nodes: Mapping[Var, Vertex]
) -> Iterator[Step]:
    """The steps of an order, with what they were counted to cost; those that touch nothing are left out."""
    state = Elimination(graph, graph.structures, STRUCTURES)
    for each, (vertex, multiplications) in zip(order, counts.per_vertex, strict=True):
        joined = list(_joined(graph, state, each))
        edge = _edge(graph, state, each, nodes)
        existing = {(reader, operand) for reader, row in state.rows.items() for operand in row}
        state.eliminate(each)
        if joined:
            products = _products(joined, existing, nodes)
            yield Step(vertex, multiplications, products, blocks_of(state.rows, nodes), edge)


_Path = tuple[Var, Var, Var]


def _joined(graph: Graph, state: Elimination, step: OrderStep) -> Iterator[_Path]:
    """(reader, vertex, operand) for every edge out of a vertex and every edge into it.

    Of an edge step: for that edge, and every edge on the vertex's other side.
    """
    if isinstance(step, tuple):
        for operand, result in _between(graph, state, step):
            if operand in graph.nodes(step[0]):
                yield from ((result, operand, inner) for inner in state.rows.get(operand, ()))
            else:
                yield from ((reader, result, operand) for reader in state.readers.get(result, ()))
        return
    for node in graph.nodes(step):
        for reader in state.readers.get(node, ()):
            for operand in state.rows.get(node, ()):
                yield reader, node, operand


def _between(graph: Graph, state: Elimination, step: tuple[int, int]) -> Iterator[tuple[Var, Var]]:
    """(operand, result) of the edges between a vertex and its neighbour, whichever way they go."""
    vertex, neighbour = step
    for node in graph.nodes(vertex):
        for end in graph.ends(neighbour):
            if node in state.rows.get(end, ()):
                yield node, end
            elif end in state.rows.get(node, ()):
                yield end, node


def _edge(
    graph: Graph, state: Elimination, step: OrderStep, nodes: Mapping[Var, Vertex]
) -> tuple[str, str] | None:
    """The names of the edge that a step eliminates; of several between the same two, the first."""
    found = _between(graph, state, step) if isinstance(step, tuple) else iter(())
    return next(((nodes[operand].key, nodes[result].key) for operand, result in found), None)


def _products(
    joined: Sequence[_Path], existing: set[tuple[Var, Var]], nodes: Mapping[Var, Vertex]
) -> tuple[Product, ...]:
    products = []
    for reader, via, operand in joined:
        is_added = (reader, operand) in existing
        names = nodes[reader].key, nodes[via].key, nodes[operand].key
        products.append(Product(*names, is_added))
        existing.add((reader, operand))
    return tuple(products)

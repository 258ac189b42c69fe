"""Vertex elimination, for anything that can be multiplied and added; and the Jacobian blocks it leaves.

Eliminating a node j joins every edge k → j with every edge j → i, c_ki += c_kj · c_ji, and forgets j. A
node that is also an output keeps its own row. The same loop computes blocks with values, structures and
counts; only the algebra differs.

A step of an order is a vertex, or a pair (j, k): only the products between j's edges and its edge to or from
vertex k are taken, and that edge is forgotten. With k reading j this is called back-elimination of the edge
j → k, the other way round front-elimination. Inputs are numbered 0, -1, -2, …
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chainrule._jaxpr import ClosedJaxpr, JaxprEqn, Literal, Var, bind_equation
from chainrule.elimination._blocks import Block, add, multiply, product_structure, sum_structure
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._rules import LocalJacobian, real_shape
from chainrule.elimination._rules._elementwise import diagonal_structure
from chainrule.elimination._search import OrderStep
from chainrule.elimination._structure import Structure, zero_structure


@dataclass(frozen=True)
class EdgeAlgebra:
    """What an edge carries: how two of them are multiplied and added, and when one is nothing."""

    multiply: Callable[[Any, Any], Any]
    add: Callable[[Any, Any], Any]
    is_zero: Callable[[Any], bool]


STRUCTURES = EdgeAlgebra(product_structure, sum_structure, lambda structure: structure.is_zero)
VALUES = EdgeAlgebra(multiply, add, lambda block: block.structure.is_zero)


def eliminate(
    graph: Graph, edges: Edges, order: Iterable[OrderStep], algebra: EdgeAlgebra = VALUES
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

    def __init__(self, graph: Graph, edges: Edges, algebra: EdgeAlgebra) -> None:
        self.rows: Edges = {result: dict(row) for result, row in edges.items()}
        self.readers: dict[Var, dict[Var, None]] = {}
        self._graph = graph
        self._algebra = algebra
        for result, row in self.rows.items():
            for operand in row:
                self.readers.setdefault(operand, {})[result] = None

    def eliminate(self, step: OrderStep) -> None:
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
        """Join the edge between a node and its neighbour with the edges on the node's other side.

        The sum over paths stays the same: every path through this edge goes on through one of the edges on
        the other side, and gets an edge of its own that passes the node by.
        """
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
        # ∂reader/∂operand is a sum over paths. Every path through the node goes in by one edge and out by
        # another, so adding all products of such pairs to the edges that pass it by keeps every sum. An
        # output's own row stays: it is a row of the Jacobian, and not on a way to another one any more.
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


BlockPlace = tuple[int, int]
"""(output, input) by position."""

Rule = Callable[[JaxprEqn, list[Any]], Sequence[Any]]


def accumulate(
    graph: Graph, order: Sequence[OrderStep], operands: Sequence[Any]
) -> tuple[list[Any], dict[BlockPlace, Block]]:
    """Run a graph's program on operands: its outputs, and the Jacobian block of every pair.

    Args:
        graph: the graph.
        order: vertex numbers; has to contain `graph.required`.
        operands: values of all the program's inputs.
    """
    values = run(graph.program, operands)
    rows = eliminate(graph, local_edges(graph, values), order, VALUES)
    outputs = [read(atom, values) for atom in graph.program.jaxpr.outvars]
    return outputs, blocks_by_place(graph, rows)


def blocks_by_place(graph: Graph, rows: Edges) -> dict[BlockPlace, Block]:
    """The block of every pair of a target and an input, from the edges that are left."""
    return _by_place(graph, rows, without_values)


def without_values(structure: Structure) -> Block:
    """A block whose entries are all in its structure."""
    return Block(structure, (None,) * len(structure.terms))


def local_edges(graph: Graph, values: Mapping[Var, Any]) -> Edges:
    """The blocks of all edges, where the value of every variable is known."""
    return graph.collect(_local_blocks(graph, values), add)


def result_structures(graph: Graph, order: Sequence[OrderStep]) -> dict[BlockPlace, Structure]:
    """The structure of every block that `accumulate` gives."""
    rows = eliminate(graph, graph.structures, order, STRUCTURES)
    return _by_place(graph, rows, lambda structure: structure)


def run(
    program: ClosedJaxpr, operands: Sequence[Any], rule: Rule = bind_equation
) -> dict[Var, Any]:
    """The value of every variable; `rule` gives the results of an equation."""
    jaxpr = program.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))
    for eqn in jaxpr.eqns:
        results = rule(eqn, [read(atom, values) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return values


def read(atom: Any, values: Mapping[Var, Any]) -> Any:
    """The value of an operand."""
    return atom.val if isinstance(atom, Literal) else values[atom]


def _local_blocks(graph: Graph, values: Mapping[Var, Any]) -> dict[int, dict[BlockPlace, Block]]:
    blocks = {}
    for vertex, local in graph.partials.items():
        eqn = graph.equation(vertex)
        operands = [read(atom, values) for atom in eqn.invars]
        results = [values[var] for var in eqn.outvars]
        blocks[vertex] = _with_values(local, operands, results)
    return blocks


def _with_values(
    local: LocalJacobian, operands: Sequence[Any], results: Sequence[Any]
) -> dict[BlockPlace, Block]:
    found = local.evaluate(operands, results)
    return {
        place: Block(structure, found.get(place, (None,) * len(structure.terms)))
        for place, structure in local.structures.items()
    }


def _by_place(graph: Graph, rows: Edges, constant: Any) -> dict[BlockPlace, Any]:
    """Rows by variable as blocks by position; outputs that are inputs are identities."""
    blocks = {}
    for o, out in enumerate(graph.targets):
        out_shape = real_shape(out.aval)
        for i, source in enumerate(graph.inputs):
            found = None if isinstance(out, Literal) else rows.get(out, {}).get(source)
            if found is None and out is source:
                identity = diagonal_structure(out_shape, out_shape, stored=None)
                found = None if identity is None else constant(identity)
            in_shape = real_shape(source.aval)
            blocks[o, i] = constant(zero_structure(out_shape, in_shape)) if found is None else found
    return blocks

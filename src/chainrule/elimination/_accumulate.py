"""From a graph and an order to Jacobian blocks, with values or as structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chainrule._jaxpr import ClosedJaxpr, Literal, Var, bind_equation
from chainrule.elimination._blocks import Block, add
from chainrule.elimination._eliminate import STRUCTURES, VALUES, Step, eliminate
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._rules import LocalJacobian, real_shape
from chainrule.elimination._rules._elementwise import diagonal_structure
from chainrule.elimination._structure import Structure, zero_structure

Place = tuple[int, int]
"""(output, input) by position."""


def accumulate(
    graph: Graph, order: Sequence[Step], operands: Sequence[Any]
) -> tuple[list[Any], dict[Place, Block]]:
    """Run a graph's program on operands: its outputs, and the Jacobian block of every pair.

    Args:
        graph: the graph.
        order: vertex numbers; has to contain `graph.required`.
        operands: values of all the program's inputs.
    """
    values = _run(graph.program, operands)
    edges = graph.collect(_local_blocks(graph, values), add)
    rows = eliminate(graph, edges, order, VALUES)
    outputs = [_read(atom, values) for atom in graph.program.jaxpr.outvars]
    blocks = _by_place(
        graph, rows, lambda structure: Block(structure, (None,) * len(structure.terms))
    )
    return outputs, blocks


def result_structures(graph: Graph, order: Sequence[Step]) -> dict[Place, Structure]:
    """The structure of every block that `accumulate` gives."""
    rows = eliminate(graph, graph.structures, order, STRUCTURES)
    return _by_place(graph, rows, lambda structure: structure)


def _run(program: ClosedJaxpr, operands: Sequence[Any]) -> dict[Var, Any]:
    """The value of every variable."""
    jaxpr = program.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))
    for eqn in jaxpr.eqns:
        results = bind_equation(eqn, [_read(atom, values) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return values


def _read(atom: Any, values: Mapping[Var, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]


def _local_blocks(graph: Graph, values: Mapping[Var, Any]) -> dict[int, dict[Place, Block]]:
    blocks = {}
    for vertex, local in graph.partials.items():
        eqn = graph.equation(vertex)
        operands = [_read(atom, values) for atom in eqn.invars]
        results = [values[var] for var in eqn.outvars]
        blocks[vertex] = _with_values(local, operands, results)
    return blocks


def _with_values(
    local: LocalJacobian, operands: Sequence[Any], results: Sequence[Any]
) -> dict[Place, Block]:
    found = local.evaluate(operands, results)
    return {
        place: Block(structure, found.get(place, (None,) * len(structure.terms)))
        for place, structure in local.structures.items()
    }


def _by_place(graph: Graph, rows: Edges, constant: Any) -> dict[Place, Any]:
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

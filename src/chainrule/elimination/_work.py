"""Rough estimates of work, to choose between ways of computing a Jacobian.

Work is counted in scalar operations. The figures only have to be right in order of magnitude: they decide
between candidates that differ by the number of sweeps through a program, or by the size of local Jacobians.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from chainrule._jaxpr import ClosedJaxpr, JaxprEqn, subprograms
from chainrule.elimination._counting import count_operations
from chainrule.elimination._graph import Graph
from chainrule.elimination._rules import real_shape

__all__ = ["Estimate", "estimate_elimination", "estimate_sweeps", "program_work"]

_PER_SWEEP = 2.0
"""A derivative along one direction costs about as much again as the function, twice."""

_WHILE_ITERATIONS = 10


@dataclass(frozen=True)
class Estimate:
    """What a way of computing a Jacobian is expected to take.

    Attributes:
        operations: scalar operations.
        entries: numbers that are held at once, at most.
    """

    operations: float
    entries: float


def program_work(program: ClosedJaxpr) -> float:
    """Scalar operations of one evaluation."""
    return sum(_equation_work(eqn) for eqn in program.jaxpr.eqns)


def _equation_work(eqn: JaxprEqn) -> float:
    inner = subprograms(eqn)
    if inner:
        once = sum(program_work(sub.program) for sub in inner)
        repeats = {"scan": eqn.params.get("length", 1), "while": _WHILE_ITERATIONS}
        return once * repeats.get(eqn.primitive.name, 1)
    written = sum(_size(var.aval) for var in eqn.outvars)
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left: Any = eqn.invars[0].aval
        return written * math.prod(left.shape[d] for d in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        features = eqn.params["dimension_numbers"].rhs_spec[0]
        kernel: Any = eqn.invars[1].aval
        return written * _size(kernel) / max(1, kernel.shape[features])
    return max(written, sum(_size(atom.aval) for atom in eqn.invars))


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


def estimate_sweeps(graph: Graph, directions: int) -> Estimate:
    """`jax.jacfwd` or `jax.jacrev`: one sweep per input or output entry, all at once."""
    work = program_work(graph.program)
    widest = max(
        (_size(v.aval) for eqn in graph.program.jaxpr.eqns for v in eqn.outvars), default=1
    )
    return Estimate(work + _PER_SWEEP * directions * work, directions * widest)


def estimate_elimination(graph: Graph, order: tuple[int, ...]) -> Estimate:
    """The primal, the local Jacobians, and the products of an order."""
    counts = count_operations(graph, order)
    work = program_work(graph.program)
    locally, largest = 0.0, 0.0
    for vertex in graph.partials:
        entries = sum(s.entries for s in graph.partials[vertex].structures.values())
        largest = max(largest, entries)
        if vertex in graph.without_rule:
            locally += _fallback_work(graph, vertex)
        else:
            locally += sum(_size(var.aval) for var in graph.nodes(vertex))
    return Estimate(
        work + locally + counts.nontrivial + counts.additions, max(largest, counts.peak)
    )


def _fallback_work(graph: Graph, vertex: int) -> float:
    """Sweeps through one equation: as many as its smaller side has entries."""
    eqn = graph.equation(vertex)
    operands = {operand for _, operand in graph.partials[vertex].structures}
    columns = sum(math.prod(real_shape(eqn.invars[p].aval)) for p in operands)
    rows = sum(math.prod(real_shape(var.aval)) for var in graph.nodes(vertex))
    return _PER_SWEEP * min(rows, columns) * _equation_work(eqn)

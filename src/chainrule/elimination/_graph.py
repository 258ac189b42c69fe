"""The computational graph of a function's program: what depends on what, and with which structure.

A vertex is an equation of the flat program, numbered from 1. A node is a variable; an equation with
several results has several nodes and one number. An edge goes from a result to an operand and carries the
structure of ∂result/∂operand. The graph is static: it is built from shapes, before any value exists, so
that orders can be searched and counted without running anything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._describe import describe_error
from chainrule._errors import CapabilityError, ChainruleError
from chainrule._jaxpr import (
    CALLBACKS,
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    OutsideCall,
    Var,
    bind_equation,
    equations_inside,
    is_reference,
    locate,
    outside_call_of,
    subprograms,
)
from chainrule.elimination._blocks import sum_structure
from chainrule.elimination._rules import (
    Equation,
    LocalJacobian,
    has_rule,
    local_jacobian,
    real_size,
)
from chainrule.elimination._structure import Structure

_log = logging.getLogger(__name__)

_LARGE = 1_000_000
"""Dense local Jacobians of this size deserve a line in the log."""

_SELECTING = frozenset({"select_n", "clamp", "max", "min", "reduce_max", "reduce_min", "cond"})

Edges = dict[Var, dict[Var, Any]]
"""Result → operand → block (or structure, or what else is computed per edge)."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A program with the partials of its equations.

    Attributes:
        program: the flat program.
        inputs: the variables to differentiate with respect to, in order.
        targets: the program's outputs that are differentiated, in order.
        partials: vertex number → local Jacobian, for the equations on a way from inputs to outputs.
        without_rule: vertex numbers whose partials come from JAX rather than from a rule.
    """

    program: ClosedJaxpr
    inputs: tuple[Var, ...]
    targets: tuple[Any, ...]
    partials: Mapping[int, LocalJacobian]
    without_rule: tuple[int, ...]

    @cached_property
    def outputs(self) -> frozenset[Var]:
        """The variables whose rows are wanted."""
        return frozenset(v for v in self.targets if not isinstance(v, Literal))

    def equation(self, vertex: int) -> JaxprEqn:
        """The equation of a vertex."""
        return self.program.jaxpr.eqns[vertex - 1]

    def describe(self, vertex: int) -> str:
        """A vertex for messages: number, primitive and the user's line."""
        eqn = self.equation(vertex)
        where = locate(eqn)
        return f"{vertex} ({eqn.primitive.name}{f' at {where}' if where else ''})"

    def nodes(self, vertex: int) -> tuple[Var, ...]:
        """The variables that a vertex defines, also those that are not read."""
        return tuple(self.equation(vertex).outvars)

    def ends(self, number: int) -> tuple[Var, ...]:
        """The variables that a vertex defines; of 0, -1, -2, …, the first, second, third input."""
        return self.nodes(number) if number > 0 else (self.inputs[-number],)

    @cached_property
    def nonlinear(self) -> tuple[int, ...]:
        """The vertices with a rule of the user's that is not linear, so that no matrix stands for it."""
        return tuple(vertex for vertex, local in self.partials.items() if local.not_linear)

    @cached_property
    def selects(self) -> bool:
        """Whether it cuts paths by values, as `jnp.where` does; see `_blocks`."""
        return any(self.equation(vertex).primitive.name in _SELECTING for vertex in self.partials)

    @cached_property
    def sites(self) -> tuple[int, ...]:
        """The vertices that call components which are not inlined, themselves or inside."""
        return tuple(v for v in self.partials if component_calls(self.equation(v)))

    @property
    def rows(self) -> int:
        """The number of rows of the Jacobian: elements of the targets."""
        return sum(real_size(atom.aval) for atom in self.targets)

    @property
    def columns(self) -> int:
        """The number of its columns: elements of the inputs."""
        return sum(real_size(var.aval) for var in self.inputs)

    @property
    def size(self) -> int:
        """The number of vertices, eliminable or not."""
        return len(self.program.jaxpr.eqns)

    @cached_property
    def structures(self) -> Edges:
        """The structure of every edge; partials of repeated operands are added up."""
        return self.collect(
            {vertex: partial.structures for vertex, partial in self.partials.items()}, sum_structure
        )

    @cached_property
    def required(self) -> tuple[int, ...]:
        """The vertices an order has to contain: those with a result that another vertex reads."""
        read = {operand for row in self.structures.values() for operand in row}
        return tuple(v for v in self.partials if any(node in read for node in self.nodes(v)))

    def collect(self, partials: Mapping[int, Mapping[Any, Any]], add: Any) -> Edges:
        """Per-equation edges, by position, as edges between variables."""
        edges: Edges = {}
        for vertex, local in partials.items():
            eqn = self.equation(vertex)
            for (result, operand), block in local.items():
                row = edges.setdefault(eqn.outvars[result], {})
                source = eqn.invars[operand]
                row[source] = add(row[source], block) if source in row else block
        return edges


def component_calls(eqn: JaxprEqn) -> list[OutsideCall]:
    """The calls of components of an equation, itself or inside."""
    calls = (outside_call_of(each) for each in (eqn, *equations_inside(eqn)))
    return [call for call in calls if call is not None and call.name is not None]


def build_graph(program: ClosedJaxpr, inputs: Sequence[int], n_targets: int | None = None) -> Graph:
    """The graph of a flat program, pruned to what lies between inputs and targets.

    Args:
        program: without call-like equations.
        inputs: positions of the inputs to differentiate with respect to.
        n_targets: how many of the outputs, from the first on, are differentiated; `None` for all.

    Raises:
        CapabilityError: the program changes arrays in place, so that a variable is not one value; or the
            partials of an equation cannot be found.
    """
    _check_values(program)
    targets = tuple(program.jaxpr.outvars[:n_targets])
    chosen = tuple(program.jaxpr.invars[k] for k in inputs)
    known = _Known(program)
    useful = _useful(program, targets)
    # What depends on the inputs need not have a derivative: `stop_gradient` and `floor` end a way. As in JAX,
    # nothing behind them is differentiated, which some primitives rely on (the state of a solver in lineax).
    active = {var for var in chosen if _is_inexact(var)}
    partials: dict[int, LocalJacobian] = {}
    without_rule = []
    for vertex, eqn in enumerate(program.jaxpr.eqns, start=1):
        wanted = tuple(_is_active(atom, active) for atom in eqn.invars)
        has_use = any(v in useful and _is_inexact(v) for v in eqn.outvars)
        if not has_use or not any(wanted):
            continue
        equation = Equation(eqn, known.reader(eqn), wanted)
        partials[vertex] = _partials(equation)
        reached = (eqn.outvars[result] for result, _ in partials[vertex].structures)
        active.update(filter(_is_inexact, reached))
        if not has_rule(equation):
            without_rule.append(vertex)
            _warn_of_dense_partials(eqn, partials[vertex])
    partials = _pruned(program, targets, partials)
    kept_without_rule = tuple(vertex for vertex in without_rule if vertex in partials)
    return Graph(program, chosen, targets, partials, kept_without_rule)


def _partials(equation: Equation) -> LocalJacobian:
    try:
        return local_jacobian(equation)
    except ChainruleError:
        raise
    except Exception as error:
        # Rules run derivative rules of users and of other packages' primitives, which may raise anything.
        name = equation.eqn.primitive.name
        where = locate(equation.eqn) or "an unknown line"
        raise CapabilityError(
            f"The partials of {name!r} at {where} could not be found ({describe_error(error)}). "
            "Use method='auto', 'jacrev' or 'jacfwd', or give its partials with `register_partials`.",
            code="no_partials",
            details={"primitive": name},
        ) from error


def _check_values(program: ClosedJaxpr) -> None:
    for eqn in program.jaxpr.eqns:
        if any(is_reference(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
            raise CapabilityError(
                f"Elimination needs variables that keep their values, but {eqn.primitive.name!r} at "
                f"{locate(eqn) or 'an unknown line'} works on a mutable array (`jax.new_ref`). Use "
                "method='jacrev', or write the function with `x.at[…].set(…)`.",
                code="mutable_array",
            )


def whole_graph(graph: Graph) -> Graph:
    """A graph with the edges that were pruned, because they come from nowhere or lead nowhere."""
    known = _Known(graph.program)
    everything = {*graph.inputs, *(v for eqn in graph.program.jaxpr.eqns for v in eqn.outvars)}
    inexact = {var for var in everything if _is_inexact(var)}
    partials = {}
    for vertex, eqn in enumerate(graph.program.jaxpr.eqns, start=1):
        wanted = tuple(_is_active(atom, inexact) for atom in eqn.invars)
        if any(wanted) and any(var in inexact for var in eqn.outvars):
            partials[vertex] = local_jacobian(Equation(eqn, known.reader(eqn), wanted))
    return replace(graph, partials=partials)


def _warn_of_dense_partials(eqn: JaxprEqn, local: LocalJacobian) -> None:
    entries = max((s.entries for s in local.structures.values()), default=0)
    if entries > _LARGE and outside_call_of(eqn) is None:  # components are asked for products
        _log.warning(
            "The primitive %s at %s has no structured rule: its local Jacobian is dense, %d entries. Give "
            "its partials with `register_partials`, or pass method='jacrev', 'jacfwd' or 'compressed'.",
            eqn.primitive.name, locate(eqn) or "an unknown line", entries,
        )  # fmt: skip


def _pruned(
    program: ClosedJaxpr, targets: Sequence[Any], partials: dict[int, LocalJacobian]
) -> dict[int, LocalJacobian]:
    """Only the edges on a way to targets."""
    kept: dict[int, dict[Any, Structure]] = {}
    wanted = {atom for atom in targets if not isinstance(atom, Literal)}
    for vertex in reversed(partials):
        eqn, structures = program.jaxpr.eqns[vertex - 1], partials[vertex].structures
        kept[vertex] = {e: s for e, s in structures.items() if eqn.outvars[e[0]] in wanted}
        wanted.update(eqn.invars[operand] for _, operand in kept[vertex])
    return {
        vertex: replace(local, structures=kept[vertex])
        for vertex, local in partials.items()
        if kept[vertex]
    }


def _is_active(atom: Any, active: set[Var]) -> bool:
    return not isinstance(atom, Literal) and atom in active


def _is_inexact(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.inexact) and var.aval.size > 0


def _useful(program: ClosedJaxpr, targets: Sequence[Any]) -> set[Var]:
    """The variables that a target depends on."""
    useful = {v for v in targets if not isinstance(v, Literal)}
    for eqn in reversed(program.jaxpr.eqns):
        if any(v in useful for v in eqn.outvars):
            useful.update(v for v in eqn.invars if not isinstance(v, Literal))
    return useful


class _Known:
    """Values that follow from literals and captured constants alone, computed when asked for."""

    def __init__(self, program: ClosedJaxpr) -> None:
        jaxpr = program.jaxpr
        self._values: dict[Var, Any] = {
            var: None if isinstance(value, jax.core.Tracer) else value
            for var, value in zip(jaxpr.constvars, program.consts, strict=True)
        }
        self._values.update(dict.fromkeys(jaxpr.invars))
        self._makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}

    def reader(self, eqn: JaxprEqn) -> Any:
        return lambda position: self.value(eqn.invars[position])

    def value(self, atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        # Depth first with a stack of our own: a chain of constants may be longer than Python can recurse.
        pending = [] if atom in self._values else [self._makers[atom]]
        while pending:
            missing = self._missing(pending[-1])
            if missing:
                pending.append(self._makers[missing[0]])
            else:
                self._evaluate(pending.pop())
        return self._values[atom]

    def _missing(self, eqn: JaxprEqn) -> list[Var]:
        """The operands of an equation that have to be evaluated before it."""
        if not _is_plain(eqn):
            return []
        return [a for a in eqn.invars if not isinstance(a, Literal) and a not in self._values]

    def _evaluate(self, eqn: JaxprEqn) -> None:
        results: Sequence[Any] = [None] * len(eqn.outvars)
        if _is_plain(eqn):
            operands = [a.val if isinstance(a, Literal) else self._values[a] for a in eqn.invars]
            if all(value is not None for value in operands):
                with jax.ensure_compile_time_eval():
                    results = bind_equation(eqn, operands)
        self._values.update(zip(eqn.outvars, results, strict=True))


def _is_plain(eqn: JaxprEqn) -> bool:
    """Loops and branches over constants may take long; nothing needs them before the run.

    A callback runs when the program runs, as often as the program says.
    """
    is_callback = eqn.primitive.name in CALLBACKS
    return not eqn.effects and not subprograms(eqn) and not is_callback


def check_linear(graph: Graph) -> None:
    """Refuse a graph with a rule of the user's that no matrix stands for.

    Raises:
        CapabilityError: with the user's source lines.
    """
    if graph.nonlinear:
        named = ", ".join(
            f"{graph.describe(vertex)}, because of {graph.partials[vertex].not_linear}"
            for vertex in graph.nonlinear[:6]
        )
        raise CapabilityError(
            "A derivative rule (`custom_jvp`, `custom_vjp`) is not linear, as one that clips or normalises "
            f"gradients, or cannot be shown to be: {named}. It has no Jacobian that could be multiplied with "
            "others. Use method='jacrev' or 'jacfwd', which apply the rule within the whole program.",
            code="nonlinear_rule",
            details={"vertices": list(graph.nonlinear)},
        )


def holder_of_a_callback(graph: Graph) -> int | None:
    """A vertex whose equation holds a callback inside: elimination evaluates such equations twice."""
    for vertex in graph.partials:
        if any(e.primitive.name in CALLBACKS for e in equations_inside(graph.equation(vertex))):
            return vertex
    return None


def check_rules(graph: Graph) -> None:
    """Refuse a graph in which some partials have no rule of their own.

    Raises:
        CapabilityError: with the primitives and the user's source lines.
    """
    if not graph.without_rule:
        return
    named = [graph.describe(vertex) for vertex in graph.without_rule[:6]]
    raise CapabilityError(
        "Every equation was asked to have a structured rule, but the partials of "
        f"{len(graph.without_rule)} would come from JAX, dense: {', '.join(named)}. Leave out strict=True, "
        "or give the primitive's partials with `register_partials`.",
        code="no_rule",
        details={"vertices": list(graph.without_rule)},
    )

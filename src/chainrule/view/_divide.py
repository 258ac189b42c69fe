"""Dividing a program into the parts of a pipeline: calls of components, and the JAX between them.

Two equations belong to one JAX part when the same components come before them and after them, they carry the
same `jax.named_scope`, and they are connected. Along an edge the components before an equation only become
more and those after it only fewer, and a change of scope starts a new level; so parts form no cycle.
Equations that depend on no input are repeated in every part that reads them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

from chainrule._jaxpr import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    close_program,
    component_of,
    evaluate,
    inline_calls,
    name_stack_of,
    subprograms,
    trace_avals,
    walk,
)

_HOST_CALLS = frozenset({"host_call", "pure_callback", "io_callback"})
"""Primitives that leave JAX. The first is the one to which the bridge binds components."""

_IDENTITIES = frozenset({"sow", "fence"})
"""Primitives of ours that give back their first operands; a capture puts a fence around what it finds."""


@dataclass(frozen=True)
class Section:
    """Some equations of a program, as a program.

    Attributes:
        program: what it computes; its inputs and outputs are variables of the whole program.
        calls: the equations that call components, at any depth; empty for a JAX part.
    """

    program: ClosedJaxpr
    calls: tuple[JaxprEqn, ...]


def called_components(eqn: JaxprEqn) -> tuple[JaxprEqn, ...]:
    """The calls of components that an equation is or holds."""
    if eqn.primitive.name in _HOST_CALLS:
        return (eqn,)
    inner = (site.equation for sub in subprograms(eqn) for site in walk(sub.program))
    return tuple(each for each in inner if each.primitive.name in _HOST_CALLS)


def open_calls(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the `jit`s around components (called or inlined), and without sows.

    Other calls stay whole, and so keep their scope. A sow is the identity and costs nothing; left in, it
    would be a part of its own between two components.
    """
    flat = inline_calls(program, only=_holds_component)
    avals = [var.aval for var in flat.jaxpr.invars]
    return trace_avals(lambda *inputs: evaluate(flat, inputs, _pass_through), avals)


def _holds_component(eqn: JaxprEqn) -> bool:
    if called_components(eqn):
        return True
    inner = (site.equation for sub in subprograms(eqn) for site in walk(sub.program))
    return component_of(eqn) is None and any(component_of(each) is not None for each in inner)


def _pass_through(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
    return operands[: len(eqn.outvars)] if eqn.primitive.name in _IDENTITIES else None


_SCOPE = re.compile(r"(?:\w+\()*([^()/]*)")


@dataclass(frozen=True)
class Scope:
    """What an equation says about where it comes from.

    Attributes:
        component: the inlined component that it is of, if any.
        name: the outermost `jax.named_scope` around it.
        is_backward: whether it is of a backward pass.
    """

    component: str | None
    name: str
    is_backward: bool


def scope_of(eqn: JaxprEqn) -> Scope:
    """Where an equation comes from."""
    stack = name_stack_of(eqn)
    match = _SCOPE.match(stack)
    component = component_of(eqn)
    name = match[1] if match and component is None else ""
    return Scope(component, name, "transpose(" in stack)


def divide(program: ClosedJaxpr) -> list[Section]:
    """The parts of a program, every part after those it reads; what nothing reads is left out."""
    return list(_Division(program).sections())


def _variables(atoms: Sequence[object]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]  # type: ignore[misc]


class _Division:
    """Facts about the equations of a program, by position."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self._program = program
        self._equations = program.jaxpr.eqns
        self._maker = {v: k for k, eqn in enumerate(self._equations) for v in eqn.outvars}
        self._before = [
            sorted({self._maker[v] for v in _variables(eqn.invars) if v in self._maker})
            for eqn in self._equations
        ]

    @cached_property
    def _live(self) -> set[int]:
        """Equations that an output or an effect depends on."""
        wanted = set(_variables(self._program.jaxpr.outvars))
        live = set()
        for k, eqn in reversed(list(enumerate(self._equations))):
            if eqn.effects or any(v in wanted for v in eqn.outvars):
                live.add(k)
                wanted.update(_variables(eqn.invars))
        return live

    @cached_property
    def _constant(self) -> set[int]:
        """Equations that depend on no input."""
        inputs = set(self._program.jaxpr.invars)
        constant: set[int] = set()
        for k, eqn in enumerate(self._equations):
            is_pure = not eqn.effects and not called_components(eqn)
            reads_input = any(v in inputs for v in _variables(eqn.invars))
            if is_pure and not reads_input and constant.issuperset(self._before[k]):
                constant.add(k)
        return constant

    def _groups(self) -> list[list[int]]:
        """Positions of the equations of every part."""
        placed = [k for k in sorted(self._live) if k not in self._constant]
        keys = self._keys(placed)
        parent = {k: k for k in placed}

        def root(k: int) -> int:
            while parent[k] != k:
                k = parent[k]
            return k

        for k in placed:
            for p in self._before[k]:
                if p in parent and keys[p] == keys[k]:
                    parent[root(k)] = root(p)
        groups = defaultdict(list)
        for k in placed:
            groups[root(k)].append(k)
        return list(groups.values())

    def _keys(self, placed: Sequence[int]) -> dict[int, tuple[object, ...]]:
        """What the equations of one part have in common."""
        calls = {k for k in placed if called_components(self._equations[k])}
        above = self._components_before(placed, calls)
        below = self._components_after(placed, calls)
        between = {k: (k if k in calls else None, above[k], below[k]) for k in placed}
        scopes = {k: scope_of(self._equations[k]) for k in placed}
        level: dict[int, int] = {}
        for k in placed:
            near = [p for p in self._before[k] if p in level and between[p] == between[k]]
            level[k] = max((level[p] + (scopes[p] != scopes[k]) for p in near), default=0)
        return {k: (*between[k], scopes[k], level[k]) for k in placed}

    def _components_before(
        self, placed: Sequence[int], calls: set[int]
    ) -> dict[int, frozenset[int]]:
        above: dict[int, frozenset[int]] = {}
        for k in placed:
            near = [p for p in self._before[k] if p in above]
            above[k] = frozenset(calls.intersection(near)).union(*(above[p] for p in near))
        return above

    def _components_after(
        self, placed: Sequence[int], calls: set[int]
    ) -> dict[int, frozenset[int]]:
        below: dict[int, frozenset[int]] = dict.fromkeys(placed, frozenset())
        for k in reversed(placed):
            for p in self._before[k]:
                if p in below:
                    below[p] |= below[k] | ({k} & calls)
        return below

    def sections(self) -> Iterator[Section]:
        groups = self._groups()
        home = {k: number for number, group in enumerate(groups) for k in group}
        reads = {
            number: {home[p] for k in group for p in self._before[k] if p in home} - {number}
            for number, group in enumerate(groups)
        }
        for number in TopologicalSorter(reads).static_order():
            yield self._section(groups[number])

    def _section(self, group: Sequence[int]) -> Section:
        inside = set(group)
        waiting = list(group)
        while waiting:
            new = self._constant.intersection(self._before[waiting.pop()]) - inside
            inside |= new
            waiting.extend(new)
        equations = [self._equations[k] for k in sorted(inside)]
        made = {v for eqn in equations for v in eqn.outvars}
        jaxpr = self._program.jaxpr
        values = dict(zip(jaxpr.constvars, self._program.consts, strict=True))
        read = dict.fromkeys(v for eqn in equations for v in _variables(eqn.invars))
        outside = [eqn for k, eqn in enumerate(self._equations) if k in self._live - inside]
        wanted = {v for eqn in outside for v in _variables(eqn.invars)}
        wanted.update(_variables(jaxpr.outvars))
        constants = [v for v in read if v in values]
        program = close_program(
            [v for v in read if v not in made and v not in values],
            [v for k in group for v in self._equations[k].outvars if v in wanted],
            equations,
            like=jaxpr,
            constvars=constants,
            consts=[values[v] for v in constants],
        )
        calls = tuple(call for k in group for call in called_components(self._equations[k]))
        return Section(program, calls)

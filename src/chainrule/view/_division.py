"""A program divided into calls of components and the JAX between them; names for what is in it.

Two equations belong to one JAX part when the same components come before them and after them, they carry the
same `jax.named_scope`, no value that is sown lies between them, and they are connected. Along an edge the
components before an equation only become more and those after it only fewer, and a change of scope or a sown
value starts a new level; so parts form no cycle. Equations that depend on no input are repeated in every part
that reads them.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import jax

from chainrule._frames import place_text
from chainrule._jaxpr import (
    FENCE,
    ClosedJaxpr,
    JaxprEqn,
    Var,
    close_program,
    component_of,
    equations_inside,
    evaluate,
    inline_calls,
    locate,
    name_stack_of,
    outside_call_of,
    trace_avals,
)
from chainrule._jaxpr import Literal as Constant
from chainrule.harvest.internal import SOW, sown_names


@dataclass(frozen=True)
class Section:
    """A part: some equations of a program, as a program.

    Attributes:
        program: what it computes; its inputs and outputs are variables of the whole program.
        calls: the equations that call components, at any depth; empty for a JAX part.
    """

    program: ClosedJaxpr
    calls: tuple[JaxprEqn, ...]


@dataclass(frozen=True)
class Division:
    """A program and its parts.

    Attributes:
        program: the program, without calls around components and without sows.
        sections: its parts, every one after those it reads; what nothing reads is left out.
        sown: the names under which values of the program were sown.
    """

    program: ClosedJaxpr
    sections: tuple[Section, ...]
    sown: Mapping[Var, str]


def called_components(eqn: JaxprEqn) -> tuple[JaxprEqn, ...]:
    """The calls of components that an equation is or holds."""
    if outside_call_of(eqn) is not None:
        return (eqn,)
    return tuple(each for each in equations_inside(eqn) if outside_call_of(each) is not None)


def divide(program: ClosedJaxpr) -> Division:
    """Divide a program into its parts."""
    whole, sown = _without_sows(_opened(program))
    return Division(whole, tuple(_Equations(whole, sown).sections()), sown)


def _opened(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the `jit`s around components (called or inlined) and sows.

    Other calls stay whole, and so keep their scope. The fences that a capture puts around what it finds go,
    too: each gives back its first operands.
    """
    flat = inline_calls(program, only=_is_opened)
    avals = [var.aval for var in flat.jaxpr.invars]
    return trace_avals(lambda *inputs: evaluate(flat, inputs, _pass_fence), avals)


def _is_opened(eqn: JaxprEqn) -> bool:
    if called_components(eqn):
        return True
    inside = tuple(equations_inside(eqn))
    is_around_component = any(component_of(each) is not None for each in inside)
    if component_of(eqn) is None and is_around_component:
        return True
    return any(each.primitive.name == SOW for each in inside)


def _pass_fence(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
    return operands[: len(eqn.outvars)] if eqn.primitive.name == FENCE else None


def _without_sows(program: ClosedJaxpr) -> tuple[ClosedJaxpr, dict[Var, str]]:
    """The program with sown values in the place of what a sow gives back; the names of the values."""
    stands_for: dict[Var, Any] = {}
    names: dict[Var, str] = {}

    def seen(atoms: Sequence[Any]) -> list[Any]:
        return [a if isinstance(a, Constant) else stands_for.get(a, a) for a in atoms]

    kept = []
    for eqn in program.jaxpr.eqns:
        operands = seen(eqn.invars)
        if eqn.primitive.name != SOW:
            kept.append(eqn.replace(invars=operands))
            continue
        stands_for.update(zip(eqn.outvars, operands, strict=False))
        named = zip(operands, sown_names(eqn), strict=False)
        names.update((atom, name) for atom, name in named if not isinstance(atom, Constant))
    jaxpr = program.jaxpr
    return close_program(
        jaxpr.invars, seen(jaxpr.outvars), kept, like=jaxpr, constvars=jaxpr.constvars,
        consts=program.consts,
    ), names  # fmt: skip


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


def stage_of(eqn: JaxprEqn) -> str:
    """The outermost `jax.named_scope` around an equation, also of one that belongs to a component."""
    match = _SCOPE.match(name_stack_of(eqn))
    return match[1] if match and not match[1].startswith("component:") else ""


def function_of(eqn: JaxprEqn) -> str | None:
    """The function that an equation was written in, without what that is defined in; or file and line."""
    place = locate(eqn)
    if place is None:
        return None
    names = [name for name in place.function.split(".") if not name.startswith("<")]
    return names[-1] if names else place_text(place.file, place.line)


def scope_of(eqn: JaxprEqn) -> Scope:
    """Where an equation comes from."""
    stack = name_stack_of(eqn)
    match = _SCOPE.match(stack)
    component = component_of(eqn)
    name = match[1] if match and component is None else ""
    return Scope(component, name, "transpose(" in stack)


def argument_names(fun: Callable[..., Any], count: int) -> list[str]:
    """A name for each of the first positional arguments."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):  # functions without a signature, such as some of C
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            break
        names.append(parameter.name)
    return (names + [f"argument {k}" for k in range(len(names), count)])[:count]


def leaf_names(fun: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]) -> list[str]:
    """A name for every leaf of the arguments at these positions."""
    names = argument_names(fun, len(args))
    return [
        names[k] + jax.tree_util.keystr(path)
        for k in positions
        for path, _ in jax.tree_util.tree_leaves_with_path(args[k])
    ]


def _variables(atoms: Sequence[object]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Constant)]  # type: ignore[misc]


class _Equations:
    """Facts about the equations of a program, by position."""

    def __init__(self, program: ClosedJaxpr, sown: Mapping[Var, str]) -> None:
        self._program = program
        self._sown = sown
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
        # The level rises along every edge on which the scope changes or a sown value passes, so two equations
        # of one level have none of these between them, and an edge never leads to a lower level: no cycle.
        level: dict[int, int] = {}
        for k in placed:
            near = [p for p in self._before[k] if p in level and between[p] == between[k]]
            level[k] = max(
                (level[p] + (scopes[p] != scopes[k] or self._is_named(p, k)) for p in near),
                default=0,
            )
        return {k: (*between[k], scopes[k], level[k]) for k in placed}

    def _is_named(self, maker: int, reader: int) -> bool:
        """Whether a sown value goes from one equation to another."""
        read = _variables(self._equations[reader].invars)
        return any(v in self._sown for v in self._equations[maker].outvars if v in read)

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
        stages = [stage_of(self._equations[group[-1]]) for group in groups]
        for number in _in_stages(reads, stages):
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


def _in_stages(reads: Mapping[int, set[int]], stages: Sequence[str]) -> Iterator[int]:
    """The parts in an order in which every part follows those it reads, and stages are kept together."""
    waiting = TopologicalSorter(reads)
    waiting.prepare()
    ready: list[int] = []
    stage = ""
    while waiting.is_active():
        ready += waiting.get_ready()
        number = min(ready, key=lambda each: (stages[each] != stage, each))
        ready.remove(number)
        stage = stages[number]
        waiting.done(number)
        yield number

"""The components and JAX parts of a function, with shapes and cost.

A program is divided into calls of components and the JAX between them. Two equations belong to one JAX part
when the same components come before them and after them, they carry the same `jax.named_scope`, and
they are connected. Along an edge the components before an equation only become more and those after it only
fewer, and a change of scope starts a new level; so parts form no cycle. Equations that depend on no input are
repeated in every part that reads them.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from html import escape
from typing import Any, Literal

import jax
from rich.table import Table

from chainrule._describe import describe_array
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
    plain_text,
    trace,
    trace_avals,
)
from chainrule._jaxpr import Literal as Constant
from chainrule.elimination.internal import program_work
from chainrule.harvest.internal import SOW
from chainrule.view._arguments import argument_names
from chainrule.view._layout import lay_out
from chainrule.view._picture import CHARACTER, Arrow, Drawing, Label, Picture, Rectangle, Shape

_IDENTITIES = frozenset({SOW, FENCE})
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
    if outside_call_of(eqn) is not None:
        return (eqn,)
    return tuple(each for each in equations_inside(eqn) if outside_call_of(each) is not None)


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
    is_inside = any(component_of(each) is not None for each in equations_inside(eqn))
    return component_of(eqn) is None and is_inside


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
    return [atom for atom in atoms if not isinstance(atom, Constant)]  # type: ignore[misc]


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


RESULT = "result"

_FILLS = {"component": ("#fef3c7", "#d97706"), "jax": ("#ffffff", "#6b7280")}
_INPUT, _OUTPUT = ("#e0e7ff", "#4f46e5"), ("#d1fae5", "#059669")
_LINE = 15.0
_MOST_LINES = 60


@dataclass(frozen=True)
class Part:
    """A call of a component, or the JAX operations between two of them.

    Attributes:
        kind: `"component"` or `"jax"`.
        name: the component's name; else the `jax.named_scope`, or the functions it was written in.
        detail: what is asked of a component (`apply`, `vjp`, …), or that it was inlined; else which pass
            it belongs to.
        equations: number of JAX equations.
        operations: estimated scalar operations of a JAX part; `None` where only the component knows.
        bytes_in: size of the arrays that go in.
        bytes_out: size of the arrays that come out and are used.
        seconds: of one run; `None` when it was not measured.
        program: what it computes.
    """

    kind: Literal["component", "jax"]
    name: str
    detail: str
    equations: int
    operations: float | None
    bytes_in: int
    bytes_out: int
    seconds: float | None
    program: ClosedJaxpr = field(repr=False)

    @property
    def cost(self) -> str:
        """What is known about its cost, in words."""
        if self.operations is None:
            known = f"{_short(self.bytes_in)}B in, {_short(self.bytes_out)}B out"
        else:
            unit = "operation" if self.operations == 1 else "operations"
            known = f"≈ {_short(self.operations).strip()} {unit}"
        return known if self.seconds is None else f"{known}, {_short(self.seconds)}s"


@dataclass(frozen=True)
class Link:
    """Arrays that go from one place to another.

    Attributes:
        source: the number of a part, or the name of an argument.
        target: the number of a part, or `"result"`.
        types: shape and dtype of each array, such as `f32[3,4]`.
    """

    source: int | str
    target: int | str
    types: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.types[:2])
        return f"{shown} + {len(self.types) - 2}" if len(self.types) > 2 else shown


@dataclass(frozen=True)
class Pipeline(Picture):
    """The graph of a function's parts. A notebook shows it, rich prints it, `.save("x.svg")` keeps it.

    Attributes:
        parts: every part after those it reads.
        links: what flows between arguments, parts and the result.
    """

    parts: tuple[Part, ...]
    links: tuple[Link, ...]

    def __rich__(self) -> Table:
        table = Table("", "part", "", "reads", "cost")
        for number, part in enumerate(self.parts):
            sources = (link.source for link in self.links if link.target == number)
            reads = ", ".join(str(source) for source in sources)
            table.add_row(str(number), part.name, part.detail, reads, part.cost)
        return table

    def drawing(self) -> Drawing:
        """Boxes from left to right: arguments, parts, result."""
        boxes = self._boxes()
        sizes = {node: box.size for node, box in boxes.items()}
        labels = {(link.source, link.target): str(link) for link in self.links}
        longest = max(map(len, labels.values()), default=0)
        layout = lay_out(sizes, labels, between=max(40.0, longest * CHARACTER + 28))
        shapes: list[Shape] = [Arrow(layout.routes[edge], "#6b7280") for edge in labels]
        for node, box in boxes.items():
            shapes.extend(box.draw(layout.places[node]))
        for edge, text in labels.items():
            x, y = layout.middle(edge)
            shapes.append(Label(text, (x, y - 8), is_faint=True, has_halo=True))
        return Drawing(tuple(shapes), *layout.size, "Pipeline")

    def html(self) -> str:
        """The picture, and below it what every JAX part computes, to be opened."""
        parts = "".join(map(_details, self.parts))
        return f'<div><div style="overflow-x:auto">{self.svg()}</div>{parts}</div>'

    def _boxes(self) -> dict[int | str, Box]:
        arguments = dict.fromkeys(k.source for k in self.links if isinstance(k.source, str))
        boxes: dict[int | str, Box] = {name: Box((name,), *_INPUT) for name in arguments}
        for number, part in enumerate(self.parts):
            lines = (part.name, part.detail, part.cost)
            boxes[number] = Box(tuple(filter(None, lines)), *_FILLS[part.kind])
        boxes[RESULT] = Box((RESULT,), *_OUTPUT)
        return boxes


def pipeline(fun: Callable[..., Any], *args: Any, measure: bool = False) -> Pipeline:
    """Draw a function as a graph of components and JAX parts, with shapes and cost.

    Calls of `apply_component`, `from_callable` and JAX's callbacks are parts of their own, wherever they sit;
    what JAX computes between them is one part per `jax.named_scope`. A component that was inlined is a part
    too, with the cost of its JAX. Derivatives are functions like any other:
    `pipeline(jax.grad(f), x)` shows the backward pass.

    Args:
        fun: a function of pytrees that JAX can trace.
        *args: its arguments, or `jax.ShapeDtypeStruct`s of them.
        measure: also run it, part by part, after a first run that does not count.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, chainrule
        >>> from chainrule import view
        >>> solve = chainrule.from_callable(
        ...     np.cumsum, vjp=lambda x, u: (u[::-1].cumsum()[::-1],), abstract=lambda x: x
        ... )
        >>> picture = view.pipeline(lambda x: jnp.sum(solve(2 * x)), jnp.arange(3.0))
        >>> [part.kind for part in picture.parts]
        ['jax', 'component', 'jax']
        >>> [str(link) for link in picture.links]
        ['f32[3]', 'f32[3]', 'f32[3]', 'f32[]']
    """
    program = open_calls(trace(fun, *args)[0])
    sections = divide(program)
    seconds = _measure(program, sections, jax.tree.leaves(args)) if measure else {}
    parts = tuple(_part(section, seconds.get(k)) for k, section in enumerate(sections))
    return Pipeline(parts, tuple(_links(program, sections, _input_names(fun, args))))


def _input_names(fun: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """For every leaf the argument that it is of."""
    names = argument_names(fun, len(args))
    return [name for name, arg in zip(names, args, strict=True) for _ in jax.tree.leaves(arg)]


def _part(section: Section, seconds: float | None) -> Part:
    jaxpr = section.program.jaxpr
    is_jax = not section.calls
    name, detail = _describe_jax(jaxpr.eqns) if is_jax else _describe_call(jaxpr.eqns[-1], section)
    is_inlined = is_jax and scope_of(jaxpr.eqns[-1]).component is not None
    return Part(
        kind="component" if is_inlined or not is_jax else "jax",
        name=name,
        detail=detail,
        equations=len(jaxpr.eqns),
        operations=program_work(section.program) if is_jax else None,
        bytes_in=_bytes(jaxpr.invars),
        bytes_out=_bytes(jaxpr.outvars),
        seconds=seconds,
        program=section.program,
    )


def _describe_jax(equations: Sequence[JaxprEqn]) -> tuple[str, str]:
    scope = scope_of(equations[-1])
    functions = dict.fromkeys(filter(None, map(_function, equations)))
    name = scope.name or ", ".join(list(functions)[:2]) or equations[-1].primitive.name
    how = "JAX" if scope.component is None else "inlined JAX"
    return scope.component or name, f"{how}, backward" if scope.is_backward else how


def _function(eqn: JaxprEqn) -> str | None:
    """The function that an equation was written in, without what that is defined in."""
    place = locate(eqn)
    return None if place is None else place.function.rsplit(".", 1)[-1]


def _describe_call(eqn: JaxprEqn, section: Section) -> tuple[str, str]:
    """What is called, and for what; the loop or branch around it, if it is in one."""
    named = dict.fromkeys(_called(call) for call in section.calls)
    names = ", ".join(dict.fromkeys(name for name, _ in named))
    asked = ", ".join(dict.fromkeys(request for _, request in named))
    is_inside = eqn not in section.calls
    return names, f"{asked} in {eqn.primitive.name}" if is_inside else asked


def _called(eqn: JaxprEqn) -> tuple[str, str]:
    call = outside_call_of(eqn)
    assert call is not None
    return call.name or _function(eqn) or "callback", call.request


def _links(
    program: ClosedJaxpr, sections: Sequence[Section], inputs: Sequence[str]
) -> Iterator[Link]:
    source: dict[Var, int | str] = dict(zip(program.jaxpr.invars, inputs, strict=True))
    flows: dict[tuple[int | str, int | str], dict[Var, None]] = defaultdict(dict)
    for number, section in enumerate(sections):
        for var in section.program.jaxpr.invars:
            flows[source[var], number][var] = None
        source.update(dict.fromkeys(section.program.jaxpr.outvars, number))
    for atom in program.jaxpr.outvars:
        if not isinstance(atom, Constant) and atom in source:
            flows[source[atom], RESULT][atom] = None
    for (start, end), variables in flows.items():
        yield Link(start, end, tuple(describe_array(var.aval) for var in variables))


def _measure(
    program: ClosedJaxpr, sections: Sequence[Section], operands: Sequence[Any]
) -> dict[int, float]:
    """Seconds per part."""
    values = dict(zip(program.jaxpr.invars, operands, strict=True))
    seconds = {}
    for number, section in enumerate(sections):
        inputs = [values[var] for var in section.program.jaxpr.invars]
        outputs, seconds[number] = _run(section, inputs)
        values.update(zip(section.program.jaxpr.outvars, outputs, strict=True))
    return seconds


def _run(section: Section, inputs: Sequence[Any]) -> tuple[Sequence[Any], float]:
    def function(*flat: Any) -> list[Any]:
        return evaluate(section.program, flat)

    run, repeats = (function, 1) if section.calls else (jax.jit(function), 3)
    jax.block_until_ready(run(*inputs))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = jax.block_until_ready(run(*inputs))
        times.append(time.perf_counter() - start)
    return outputs, min(times)


def _bytes(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _short(number: float) -> str:
    """Three digits and a prefix: `1.23 k`, `45 µ`."""
    if number == 0:
        return "0 "
    exponent = max(-3, min(4, math.floor(math.log10(abs(number)) / 3)))
    prefix = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}[exponent]
    return f"{number / 1000.0**exponent:.3g} {prefix}"


def _details(part: Part) -> str:
    """The equations of a part, at most `_MOST_LINES` lines."""
    if part.operations is None:
        return ""
    lines = plain_text(part.program.jaxpr).splitlines()
    shown = "\n".join(lines[:_MOST_LINES])
    more = f"\n… {len(lines) - _MOST_LINES} more lines" if len(lines) > _MOST_LINES else ""
    title = escape(f"{part.name}, {part.detail}: {part.cost}")
    style = "font-family:ui-monospace,Menlo,'DejaVu Sans Mono',monospace;overflow-x:auto"
    program = f'<pre style="{style}">{escape(shown + more)}</pre>'
    return f"<details><summary>{title}</summary>{program}</details>"


@dataclass(frozen=True)
class Box:
    """Lines of text, the first of which is the title, on a ground."""

    lines: tuple[str, ...]
    fill: str
    stroke: str

    @property
    def size(self) -> tuple[float, float]:
        width = max(map(len, self.lines)) * CHARACTER + 20
        return width, len(self.lines) * _LINE + 14

    def draw(self, place: tuple[float, float]) -> Iterator[Shape]:
        yield Rectangle(place, self.size, self.fill, self.stroke)
        top = place[1] - (len(self.lines) - 1) * _LINE / 2
        for k, line in enumerate(self.lines):
            yield Label(line, (place[0], top + k * _LINE), is_strong=k == 0, is_faint=k > 0)

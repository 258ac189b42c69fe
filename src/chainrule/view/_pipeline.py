"""The programs of a function as a graph: what flows between them, forward and back, and what they cost.

`pipeline` draws a function without running it; `gradient_flow` runs it and its gradient, and so has the
values on the links and their cotangents. A cotangent on a link is what its reader alone contributes: the
cotangent of a value is the sum over the links that it takes.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Group as Renderables
from rich.table import Table

from chainrule._describe import describe_array, describe_value
from chainrule._errors import InputError
from chainrule._jaxpr import ClosedJaxpr, JaxprEqn, Var, evaluate, outside_call_of, plain_text, trace
from chainrule._jaxpr import Literal as Constant
from chainrule.elimination.internal import program_work
from chainrule.harvest import save_intermediates, sow
from chainrule.view._arguments import argument_names
from chainrule.view._arrays import Array, norm, reduced
from chainrule.view._division import Division, Section, divide, function_of, scope_of, stage_of
from chainrule.view._layout import lay_out_down
from chainrule.view._matrix import matrix
from chainrule.view._page import cell, page
from chainrule.view._picture import (
    CHARACTER,
    FAINT,
    GROUND,
    WRONG,
    Arrow,
    Box,
    Drawing,
    Group,
    Label,
    Picture,
    Point,
    Rectangle,
    Shape,
)

RESULT = "result"

_MOST_BOXES = 15  # of parts; more are drawn as a matrix
_MOST_LINES = 60
_LONGEST = 38  # characters of a line in a box
_FILLS = {"component": ("#fef3c7", "#d97706"), "jax": ("#ffffff", "#6b7280")}
_INPUT, _OUTPUT = ("#e0e7ff", "#4f46e5"), ("#d1fae5", "#059669")
_VALUES = ("#c7d2fe", "#a5b4fc", "#818cf8", "#6366f1", "#3730a3")
_COTANGENTS = ("#a7f3d0", "#6ee7b7", "#34d399", "#047857", "#064e3b")
_PLAIN = "#6b7280"
_LINE = 15.0
_BETWEEN = 22.0
_LEGEND = 40.0
_HEIGHT = 640  # of the frame in a notebook, until it knows its own
_FRAMEWORKS = {
    "jax": "JAX", "numpy": "NumPy", "torch": "PyTorch", "cupy": "CuPy", "warp": "Warp", "onnx": "ONNX",
    "fmi": "FMU", "command": "command", "device": "GPU",
}  # fmt: skip


@dataclass(frozen=True)
class Flow:
    """One array on a link.

    Attributes:
        name: under which it was sown, or by which a component knows it; empty where it has no name.
        type: its shape and dtype, such as `f32[3,4]`.
        value: the array; `None` where the function was not run.
        cotangent: the derivative of the result with respect to it, along this link; `None` where there is
            none, as for integers.
    """

    name: str
    type: str
    value: Array | None = field(default=None, repr=False, compare=False)
    cotangent: Array | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.type}".strip()

    @property
    def nonfinite(self) -> int:
        """How many entries of the value and of the cotangent are NaN or infinite."""
        arrays = (a for a in (self.value, self.cotangent) if a is not None)
        return sum(int(np.sum(~np.isfinite(array))) for array in arrays)


@dataclass(frozen=True)
class Link:
    """Arrays that go from one place to another.

    Attributes:
        source: the number of a part, or the name of an argument.
        target: the number of a part, or `"result"`.
        flows: the arrays.
    """

    source: int | str
    target: int | str
    flows: tuple[Flow, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.types[:2])
        return f"{shown} + {len(self.types) - 2}" if len(self.types) > 2 else shown

    @property
    def types(self) -> tuple[str, ...]:
        """Shape and dtype of each array."""
        return tuple(flow.type for flow in self.flows)

    @property
    def value_norm(self) -> float | None:
        """Euclidean norm of all values; `None` where the function was not run."""
        return _norm(flow.value for flow in self.flows)

    @property
    def cotangent_norm(self) -> float | None:
        """Euclidean norm of all cotangents; `None` where there are none."""
        return _norm(flow.cotangent for flow in self.flows)

    @property
    def nonfinite(self) -> int:
        """How many entries of values and cotangents are NaN or infinite."""
        return sum(flow.nonfinite for flow in self.flows)


def _norm(arrays: Iterator[Array | None]) -> float | None:
    there = [array for array in arrays if array is not None]
    return norm(there) if there else None


@dataclass(frozen=True)
class Part:
    """A call of a component, or the JAX operations between two of them.

    Attributes:
        kind: `"component"` or `"jax"`.
        name: the component's name; else the `jax.named_scope`, or the functions it was written in.
        detail: what is asked of a component (`apply`, `vjp`, …), or that it was inlined; else which pass
            it belongs to.
        framework: what a component is written in; `None` where that is not known.
        place: where it runs: `in this process`, an address, an image, …
        stage: the outermost `jax.named_scope` around it; parts of one stage collapse in the matrix.
        equations: number of JAX equations.
        operations: estimated scalar operations of a JAX part; `None` where only the component knows.
        bytes_in: size of the arrays that go in.
        bytes_out: size of the arrays that come out and are used.
        seconds: of one run, by what was run: `apply` and `vjp` of a component, `forward` and `backward` of
            a JAX part; empty when it was not measured.
        program: what it computes.
    """

    kind: Literal["component", "jax"]
    name: str
    detail: str
    framework: str | None
    place: str
    stage: str
    equations: int
    operations: float | None
    bytes_in: int
    bytes_out: int
    seconds: Mapping[str, float]
    program: ClosedJaxpr = field(repr=False)

    @property
    def cost(self) -> str:
        """What is known about its cost, in words."""
        if self.operations is None:
            known = f"{_short(self.bytes_in)}B in, {_short(self.bytes_out)}B out"
        else:
            unit = "operation" if self.operations == 1 else "operations"
            known = f"≈ {_short(self.operations).strip()} {unit}"
        return ", ".join([known, *filter(None, [self.duration])])

    @property
    def duration(self) -> str:
        """How long it took, in words; empty when it was not measured."""
        return ", ".join(f"{name} {_short(seconds)}s" for name, seconds in self.seconds.items())

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands in its box."""
        detail = " · ".join(filter(None, (self.detail, self.framework)))
        place = self.place if self.kind == "component" else ""
        cost = self.cost.removesuffix(self.duration).removesuffix(", ")
        lines = (self.name, detail, place, cost, self.duration)
        return tuple(_cut(line) for line in lines if line)


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


@dataclass(frozen=True)
class Pipeline(Picture):
    """The graph of a function's parts. A notebook shows it, rich prints it, `.save("x.html")` keeps it.

    Up to 15 parts are boxes, from the top down. More are a matrix: programs are its rows and columns, values
    stand above the diagonal (in the row of what makes them, in the column of what reads them), and
    cotangents below. The page has both, and shows the fields of a link that is chosen.

    Attributes:
        parts: every part after those it reads.
        links: what flows between arguments, parts and the result.
    """

    parts: tuple[Part, ...]
    links: tuple[Link, ...]

    @property
    def has_values(self) -> bool:
        """Whether the function was run."""
        return any(flow.value is not None for link in self.links for flow in link.flows)

    def __rich__(self) -> Table | Renderables:
        table = Table("", "part", "", "reads", "cost")
        for number, part in enumerate(self.parts):
            sources = (link.source for link in self.links if link.target == number)
            reads = ", ".join(str(source) for source in sources)
            detail = " · ".join(filter(None, (part.detail, part.framework)))
            table.add_row(str(number), part.name, detail, reads, part.cost)
        return Renderables(table, self._norms()) if self.has_values else table

    def _norms(self) -> Table:
        table = Table("from", "to", "what", "norm", "cotangent norm", "NaN/inf")
        for link in self.links:
            table.add_row(
                self.label(link.source), self.label(link.target), ", ".join(map(str, link.flows)),
                _number(link.value_norm), _number(link.cotangent_norm), str(link.nonfinite or ""),
                style="red" if link.nonfinite else None,
            )  # fmt: skip
        return table

    def label(self, place: int | str) -> str:
        """What a place is called; of several JAX parts of one name, with what it makes."""
        if isinstance(place, str):
            return place
        part = self.parts[place]
        is_alone = [each.name for each in self.parts].count(part.name) == 1
        if is_alone or part.kind == "component":
            return part.name
        made = (flow.name for link in self.links if link.source == place for flow in link.flows)
        return " → ".join([part.name, *list(dict.fromkeys(filter(None, made)))[:1]])

    def drawing(self) -> Drawing:
        """Boxes from the top down: arguments, parts, result; or a matrix of them."""
        return self._graph() if len(self.parts) <= _MOST_BOXES else self._matrix()

    def html(self) -> str:
        """The picture for a page or a notebook: a frame in which links can be chosen."""
        return cell(self.page(), "Pipeline", _HEIGHT)

    def page(self) -> str:
        """The picture as a whole page that needs nothing else."""
        markup = f'<div class="static">{self.svg()}</div>'
        return page("pipeline.js", "Pipeline", self._data(), markup)

    def _nodes(self) -> list[int | str]:
        """The arguments that are read, the parts and the result, in order."""
        arguments = dict.fromkeys(k.source for k in self.links if isinstance(k.source, str))
        return [*arguments, *range(len(self.parts)), RESULT]

    def _graph(self) -> Drawing:
        boxes = {node: self._box(node) for node in self._nodes()}
        chips = {link: _Chip(link) for link in self._in_order()}
        sizes: dict[Any, Point] = {}
        for node, box in boxes.items():
            sizes |= {link: chip.size for link, chip in chips.items() if link.target == node}
            sizes[node] = box.size
        edges = [e for link in chips for e in ((link.source, link), (link, link.target))]
        layout = lay_out_down(sizes, edges, between=_BETWEEN)
        routes = _spread(layout.routes, boxes)
        scales = self._scales()
        shapes: list[Shape] = []
        for link in chips:
            ends = routes[link.source, link], routes[link, link.target]
            shapes.extend(_lines(link, *ends, *scales))
        for node, box in boxes.items():
            drawn = tuple(box.draw(layout.places[node]))
            shapes.append(Group(drawn, (0.0, 0.0), f"node-{self._nodes().index(node)}"))
        for link, chip in chips.items():
            drawn = tuple(chip.draw(layout.places[link]))
            shapes.append(Group(drawn, (0.0, 0.0), f"link-{self.links.index(link)}"))
        width, height = layout.size
        if not self.has_values:
            return Drawing(tuple(shapes), width, height, "Pipeline")
        legend = tuple(_legend())
        moved = Group(tuple(shapes), (max(0.0, (_LEGEND_WIDTH - width) / 2), _LEGEND))
        size = max(width, _LEGEND_WIDTH), height + _LEGEND
        return Drawing((*legend, moved), *size, "Pipeline with values and cotangents")

    def _in_order(self) -> list[Link]:
        order = {node: k for k, node in enumerate(self._nodes())}
        return sorted(self.links, key=lambda link: (order[link.target], order[link.source]))

    def _box(self, node: int | str) -> Box:
        if isinstance(node, int):
            part = self.parts[node]
            return Box(part.lines, *_FILLS[part.kind])
        return Box((_cut(node),), *(_OUTPUT if node == RESULT else _INPUT))

    def _scales(self) -> tuple[_Scale, _Scale]:
        values = _Scale([link.value_norm for link in self.links], _VALUES)
        return values, _Scale([link.cotangent_norm for link in self.links], _COTANGENTS)

    def _matrix(self) -> Drawing:
        nodes = self._nodes()
        place = {node: k for k, node in enumerate(nodes)}
        values, cotangents = self._scales()
        cells = {}
        for link in self.links:
            row, column = place[link.source], place[link.target]
            cells[row, column] = values.colour(link.value_norm)
            if link.cotangent_norm is not None:
                cells[column, row] = cotangents.colour(link.cotangent_norm)
        labels = [self.label(node) for node in nodes]
        return matrix(labels, [self._box(node).fill for node in nodes], cells, "Pipeline")

    def _data(self) -> dict[str, Any]:
        """What the script of the page reads."""
        nodes = self._nodes()
        place = {node: k for k, node in enumerate(nodes)}
        values, cotangents = self._scales()
        return {
            "hasValues": self.has_values,
            "isMatrix": len(self.parts) > _MOST_BOXES,
            "nodes": [self._node_data(node) for node in nodes],
            "links": [
                {
                    "source": place[link.source],
                    "target": place[link.target],
                    "value": values.level(link.value_norm),
                    "cotangent": cotangents.level(link.cotangent_norm),
                    "valueNorm": link.value_norm,
                    "cotangentNorm": link.cotangent_norm,
                    "flows": [_flow_data(flow) for flow in link.flows],
                }
                for link in self.links
            ],
        }

    def _node_data(self, node: int | str) -> dict[str, Any]:
        if isinstance(node, str):
            kind = "result" if node == RESULT else "argument"
            return {"name": node, "kind": kind, "lines": [], "stage": "", "program": ""}
        part = self.parts[node]
        return {
            "name": self.label(node),
            "kind": part.kind,
            "lines": part.lines[1:],
            "stage": part.stage or part.name,
            "program": "" if part.operations is None else _program_text(part.program),
        }


def _flow_data(flow: Flow) -> dict[str, Any]:
    def short(array: Array | None) -> Array | None:
        return None if array is None or not array.size else reduced(_real(array))

    return {
        "name": flow.name,
        "type": flow.type,
        "value": short(flow.value),
        "cotangent": short(flow.cotangent),
        "valueNorm": _norm(iter([flow.value])),
        "cotangentNorm": _norm(iter([flow.cotangent])),
        "nonfinite": flow.nonfinite,
    }


def _real(array: Array) -> Array:
    return np.abs(array) if array.dtype.kind == "c" else array


def pipeline(fun: Callable[..., Any], *args: Any, measure: bool = False) -> Pipeline:
    """Draw a function as a graph of components and JAX parts, with shapes and cost.

    Calls of `apply_component`, `from_callable` and JAX's callbacks are parts of their own, wherever they sit;
    what JAX computes between them is one part per `jax.named_scope`. A value that is sown divides the JAX
    around it and names its link. A component that was inlined is a part too, with the cost of its JAX.
    Derivatives are functions like any other: `pipeline(jax.grad(f), x)` shows the backward pass.
    `gradient_flow` has values and cotangents on the links.

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
    division = divide(trace(fun, *args)[0])
    seconds = {}
    if measure:
        reads = _Reads.without_gradient(division)
        found = reads.run(jax.tree.leaves(args))
        seconds = _measure(division, reads.values(found), has_gradient=False)
    return _assemble(division, fun, args, seconds, {})


def gradient_flow(fun: Callable[..., Any], *args: Any, measure: bool = False) -> Pipeline:
    """Run a function and its gradient, and draw its graph with the values and cotangents on the links.

    The graph is that of `pipeline`. Where do gradients vanish or explode, and which program makes the NaN?

    Args:
        fun: a function of pytrees that JAX can trace and differentiate; its result is one number.
        *args: its arguments. The gradient is taken with respect to all their floating-point arrays.
        measure: also run the parts one by one, forward and backward, after a run that does not count.

    Raises:
        InputError: the result is not one floating-point number, or an argument has no value.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule import sow, view
        >>> picture = view.gradient_flow(lambda x: sow(3 * x, "h") ** 2, 1.0)
        >>> [(link.flows[0].name, link.value_norm, link.cotangent_norm) for link in picture.links]
        [('', 1.0, 18.0), ('h', 3.0, 6.0), ('', 9.0, 1.0)]
    """
    if not callable(fun):
        raise InputError(
            f"gradient_flow takes a function and its arguments; found {describe_value(fun)}. It runs the "
            "function and finds the values itself: view.gradient_flow(fun, x).",
            code="bad_argument",
        )
    flat = jax.tree.leaves(args)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in flat):
        raise InputError(
            "gradient_flow runs the function, and an argument has a shape and no value. Pass arrays, or draw "
            "the graph alone: view.pipeline(fun, …).",
            code="needs_values",
        )
    program = trace(fun, *args)[0]
    _check_scalar(program)
    division = divide(program)
    reads = _Reads.with_gradient(division)
    found = reads.run(flat)
    seconds = _measure(division, reads.values(found), has_gradient=True) if measure else {}
    return _assemble(division, fun, args, seconds, found)


def _check_scalar(program: ClosedJaxpr) -> None:
    types = [var.aval for var in program.jaxpr.outvars]
    if len(types) == 1 and types[0].shape == () and jnp.issubdtype(types[0].dtype, jnp.floating):
        return
    raise InputError(
        "gradient_flow takes a function whose result is one floating-point number; found "
        f"{', '.join(map(describe_array, types)) or 'no array'}. Reduce the result, for example: "
        "view.gradient_flow(lambda x: jnp.sum(fun(x)), x).",
        code="not_scalar",
    )


Place = tuple[Var, int | str]
"""A variable of the whole program, and the part that reads it, or `"result"`."""
Found = Mapping[Place, Mapping[str, Any]]
"""`primal` and perhaps `cotangent` of a variable where it is read."""

_TAG = "chainrule.view"


class _Reads:
    """The function of a division with every array sown where a part reads it."""

    def __init__(self, division: Division, has_gradient: bool) -> None:
        self._division = division
        self._has_gradient = has_gradient
        inner = [section.program.jaxpr for section in division.sections]
        made = {*division.program.jaxpr.invars, *(v for jaxpr in inner for v in jaxpr.outvars)}
        results = [v for v in division.program.jaxpr.outvars if not isinstance(v, Constant)]
        places = [(var, k) for k, jaxpr in enumerate(inner) for var in jaxpr.invars]
        reads: list[Place] = [*places, *((v, RESULT) for v in results if v in made)]
        self._names = {place: str(k) for k, place in enumerate(dict.fromkeys(reads))}

    @classmethod
    def with_gradient(cls, division: Division) -> _Reads:
        return cls(division, has_gradient=True)

    @classmethod
    def without_gradient(cls, division: Division) -> _Reads:
        return cls(division, has_gradient=False)

    def run(self, operands: Sequence[Any]) -> dict[Place, Mapping[str, Any]]:
        """What is read at every place, and what comes back there."""
        arrays = [jnp.asarray(operand) for operand in operands]
        floats = [k for k, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]
        is_read = any(target == RESULT for _, target in self._names)  # the result may be a constant
        has_gradient = self._has_gradient and is_read and bool(floats)

        def of_floats(chosen: Sequence[Any]) -> Any:
            every = dict(enumerate(arrays)) | dict(zip(floats, chosen, strict=True))
            results = self._evaluate(list(every.values()))
            return results[0] if has_gradient else results

        function = jax.grad(of_floats) if has_gradient else of_floats
        _, found = save_intermediates(function, tag=_TAG)([arrays[k] for k in floats])
        return {place: found[name] for place, name in self._names.items() if name in found}

    def _evaluate(self, operands: Sequence[Any]) -> list[Any]:
        values = dict(zip(self._division.program.jaxpr.invars, operands, strict=True))
        for number, section in enumerate(self._division.sections):
            inner = section.program.jaxpr
            given = [self._sown(values, var, number) for var in inner.invars]
            values.update(zip(inner.outvars, evaluate(section.program, given), strict=True))
        return [self._sown(values, var, target) for var, target in self._names if target == RESULT]

    def _sown(self, values: Mapping[Var, Any], var: Var, target: int | str) -> Any:
        return sow(values[var], self._names[var, target], tag=_TAG)

    def values(self, found: Found) -> dict[Var, Any]:
        """Variable → value."""
        return {var: entry["primal"] for (var, _), entry in found.items()}


def _assemble(
    division: Division,
    fun: Callable[..., Any],
    args: Sequence[Any],
    seconds: Mapping[int, Mapping[str, float]],
    found: Found,
) -> Pipeline:
    sections = enumerate(division.sections)
    parts = tuple(_part(section, seconds.get(k, {})) for k, section in sections)
    return Pipeline(parts, tuple(_links(division, fun, args, found)))


def _part(section: Section, seconds: Mapping[str, float]) -> Part:
    jaxpr = section.program.jaxpr
    last = jaxpr.eqns[-1]
    is_jax = not section.calls
    name, detail = _describe_jax(jaxpr.eqns) if is_jax else _describe_call(last, section)
    is_inlined = is_jax and scope_of(last).component is not None
    framework, place = _origin(section)
    return Part(
        kind="component" if is_inlined or not is_jax else "jax",
        name=name,
        detail=detail,
        framework=framework,
        place=place,
        stage=stage_of(last),
        equations=len(jaxpr.eqns),
        operations=program_work(section.program) if is_jax else None,
        bytes_in=_bytes(jaxpr.invars),
        bytes_out=_bytes(jaxpr.outvars),
        seconds=seconds,
        program=section.program,
    )


def _origin(section: Section) -> tuple[str | None, str]:
    """The framework of a part's components, and where they run."""
    calls = [call for eqn in section.calls if (call := outside_call_of(eqn)) is not None]
    frameworks = dict.fromkeys(call.framework for call in calls if call.framework)
    places = dict.fromkeys(call.place for call in calls)
    named = ", ".join(_FRAMEWORKS.get(each, each) for each in frameworks)
    return named or None, ", ".join(places) or "in this process"


def _describe_jax(equations: Sequence[JaxprEqn]) -> tuple[str, str]:
    scope = scope_of(equations[-1])
    functions = dict.fromkeys(filter(None, map(function_of, equations)))
    name = scope.name or ", ".join(list(functions)[:2]) or equations[-1].primitive.name
    how = "JAX" if scope.component is None else "inlined JAX"
    return scope.component or name, f"{how}, backward" if scope.is_backward else how


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
    return call.name or function_of(eqn) or "callback", call.request


def _links(
    division: Division, fun: Callable[..., Any], args: Sequence[Any], found: Found
) -> Iterator[Link]:
    jaxpr = division.program.jaxpr
    arguments = _argument_of_leaves(fun, args)
    source: dict[Var, int | str] = dict(zip(jaxpr.invars, arguments, strict=True))
    links: dict[tuple[int | str, int | str], dict[Var, None]] = defaultdict(dict)
    for number, section in enumerate(division.sections):
        for var in section.program.jaxpr.invars:
            links[source[var], number][var] = None
        source.update(dict.fromkeys(section.program.jaxpr.outvars, number))
    for atom in jaxpr.outvars:
        if not isinstance(atom, Constant) and atom in source:
            links[source[atom], RESULT][atom] = None
    names = _flow_names(division, args)
    for (start, end), variables in links.items():
        flows = (
            _flow(var, names.get((var, end), ""), found.get((var, end), {})) for var in variables
        )
        yield Link(start, end, tuple(flows))


def _flow(var: Var, name: str, entry: Mapping[str, Any]) -> Flow:
    def array(mode: str) -> Array | None:
        value = entry.get(mode)
        return None if value is None else np.asarray(value)

    return Flow(name, describe_array(var.aval), array("primal"), array("cotangent"))


def _argument_of_leaves(fun: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """For every leaf the argument that it is of."""
    names = argument_names(fun, len(args))
    return [name for name, arg in zip(names, args, strict=True) for _ in jax.tree.leaves(arg)]


_PLACE = re.compile(r"(\[\d+\])?")  # of an argument of a callable, which has no name


def _flow_names(division: Division, args: Sequence[Any]) -> dict[Place, str]:
    """What the arrays on the links are called: as they were sown, or as the components around call them."""
    jaxpr = division.program.jaxpr
    leaves = [path for arg in args for path, _ in jax.tree_util.tree_leaves_with_path(arg)]
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path in leaves]
    made = dict(zip(jaxpr.invars, paths, strict=True))
    for section in division.sections:
        made |= dict(_paths_of(section, "results"))
    places = {(v, RESULT): "" for v in jaxpr.outvars if not isinstance(v, Constant)}
    for number, section in enumerate(division.sections):
        places |= {(var, number): "" for var in section.program.jaxpr.invars}
        read = ((var, path) for var, path in _paths_of(section, "operands"))
        places |= {(var, number): path for var, path in read}
    return {
        (var, number): division.sown.get(var) or made.get(var) or path
        for (var, number), path in places.items()
    }


def _paths_of(section: Section, side: Literal["operands", "results"]) -> Iterator[tuple[Var, str]]:
    """The variables of a component's call, and how the component calls them."""
    eqn = section.program.jaxpr.eqns[-1]
    call = outside_call_of(eqn)
    if call is None:
        return
    atoms = eqn.invars if side == "operands" else eqn.outvars
    for atom, path in zip(atoms, getattr(call, side), strict=False):
        if not isinstance(atom, Constant) and not _PLACE.fullmatch(path):
            yield atom, path


def _measure(
    division: Division, values: Mapping[Var, Any], *, has_gradient: bool
) -> dict[int, dict[str, float]]:
    """Seconds of every part, forward and, where that is asked for, backward."""
    return {
        number: _seconds(section, [values[v] for v in section.program.jaxpr.invars], has_gradient)
        for number, section in enumerate(division.sections)
    }


def _seconds(section: Section, inputs: Sequence[Any], has_gradient: bool) -> dict[str, float]:
    is_jax = not section.calls
    run = jax.jit(section_function(section)) if is_jax else section_function(section)
    requests = dict.fromkeys(_called(call)[1] for call in section.calls)
    forward, backward = ("forward", "backward") if is_jax else (", ".join(requests), "vjp")
    repeats = 3 if is_jax else 1
    seconds = {forward: _time(run, inputs, repeats)}
    floats = [k for k, each in enumerate(inputs) if jnp.issubdtype(each.dtype, jnp.inexact)]
    if not has_gradient or not floats:
        return seconds

    def of_floats(*chosen: Any) -> list[Any]:
        every = dict(enumerate(inputs)) | dict(zip(floats, chosen, strict=True))
        outputs = run(*every.values())
        return [each for each in outputs if jnp.issubdtype(each.dtype, jnp.inexact)]

    outputs, pull = jax.vjp(of_floats, *(inputs[k] for k in floats))
    pull_back = jax.jit(pull) if is_jax else pull
    return seconds | {backward: _time(pull_back, [[jnp.ones_like(y) for y in outputs]], repeats)}


def section_function(section: Section) -> Callable[..., list[Any]]:
    """A part as a function of its inputs."""
    return lambda *flat: evaluate(section.program, flat)


def _time(run: Callable[..., Any], inputs: Sequence[Any], repeats: int) -> float:
    jax.block_until_ready(run(*inputs))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(*inputs))
        times.append(time.perf_counter() - start)
    return min(times)


def _bytes(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _short(number: float) -> str:
    """Three digits and a prefix: `1.23 k`, `45 µ`."""
    if number == 0:
        return "0 "
    exponent = max(-3, min(4, math.floor(math.log10(abs(number)) / 3)))
    prefix = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}[exponent]
    return f"{number / 1000.0**exponent:.3g} {prefix}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _program_text(program: ClosedJaxpr) -> str:
    """The equations of a part, at most `_MOST_LINES` lines."""
    lines = plain_text(program.jaxpr).splitlines()
    hidden = len(lines) - _MOST_LINES
    return "\n".join(lines[:_MOST_LINES] + ([f"… {hidden} more lines"] if hidden > 0 else []))


class _Scale:
    """Norms as one of five steps, by their logarithms."""

    def __init__(self, norms: Sequence[float | None], colours: Sequence[str]) -> None:
        self._colours = colours
        exponents = [math.log(norm) for norm in norms if norm and math.isfinite(norm)]
        self._low, self._high = min(exponents, default=0.0), max(exponents, default=0.0)

    def level(self, norm: float | None) -> int | str | None:
        """0 to 4; `"odd"` for NaN and infinity, `"zero"`, and `None` for nothing."""
        if norm is None:
            return None
        if not math.isfinite(norm):
            return "odd"
        if norm == 0:
            return "zero"
        span = self._high - self._low
        top = len(self._colours) - 1
        return top // 2 if span < 1e-6 else round(top * (math.log(norm) - self._low) / span)

    def colour(self, norm: float | None) -> str:
        """Of a line or a cell."""
        level = self.level(norm)
        if isinstance(level, int):
            return self._colours[level]
        return WRONG if level == "odd" else _PLAIN

    def width(self, norm: float | None) -> float:
        """Of a line."""
        level = self.level(norm)
        if isinstance(level, int):
            return 1.5 + level
        return 3.5 if level == "odd" else 1.2


@dataclass(frozen=True)
class _Chip:
    """What stands on a link."""

    link: Link

    @property
    def lines(self) -> tuple[str, ...]:
        flows = self.link.flows
        lines = [_cut(str(flow)) for flow in flows[:2]]
        if len(flows) > 2:
            lines.append(f"and {len(flows) - 2} more")
        norms = (("value", self.link.value_norm), ("cotangent", self.link.cotangent_norm))
        said = " · ".join(f"{word} {_number(norm)}" for word, norm in norms if norm is not None)
        return tuple(filter(None, (*lines, said)))

    @property
    def size(self) -> Point:
        return max(map(len, self.lines)) * CHARACTER + 14, len(self.lines) * _LINE + 8

    def draw(self, place: Point) -> Iterator[Shape]:
        x, y = place
        if self.link.value_norm is not None:
            yield Rectangle(place, self.size, GROUND, WRONG if self.link.nonfinite else "#d1d5db")
        top = y - (len(self.lines) - 1) * _LINE / 2
        colour = WRONG if self.link.nonfinite else FAINT
        for k, line in enumerate(self.lines):
            yield Label(line, (x, top + k * _LINE), colour=colour)


Routes = Mapping[tuple[Any, Any], tuple[Point, ...]]
_APART = 34.0


def _spread(routes: Routes, boxes: Mapping[Any, Box]) -> Routes:
    """The routes with ends that stand beside each other where several end at one box."""
    found = dict(routes)
    for node, box in boxes.items():
        for at, toward in ((0, 1), (-1, -2)):  # what leaves the box, and what comes to it
            here = [edge for edge in routes if edge[at] == node]
            here.sort(key=lambda edge: found[edge][toward][0])
            apart = min(_APART, (box.size[0] - 10) / max(1, len(here)))
            for k, edge in enumerate(here):
                points = list(found[edge])
                x, y = points[at]
                points[at] = x + apart * (k - (len(here) - 1) / 2), y
                found[edge] = tuple(points)
    return found


def _lines(
    link: Link,
    above: tuple[Point, ...],
    below: tuple[Point, ...],
    values: _Scale,
    cotangents: _Scale,
) -> Iterator[Arrow]:
    """The value from its source over its chip to its target; the cotangent, beside it, the other way."""
    value, cotangent = link.value_norm, link.cotangent_norm
    aside = 0.0 if cotangent is None else 5.0
    style = values.colour(value), values.width(value), values.level(value) == "zero"
    yield Arrow(_aside(above, -aside), *style, has_head=False, is_upright=True)
    yield Arrow(_aside(below, -aside), *style, is_upright=True)
    if cotangent is not None:
        style = cotangents.colour(cotangent), cotangents.width(cotangent), cotangents.level(cotangent) == "zero"  # fmt: skip
        yield Arrow(_aside(below, aside)[::-1], *style, has_head=False, is_upright=True)
        yield Arrow(_aside(above, aside)[::-1], *style, is_upright=True)


def _aside(points: tuple[Point, ...], distance: float) -> tuple[Point, ...]:
    return tuple((x + distance, y) for x, y in points)


_LEGEND_WIDTH = 330.0


def _legend() -> Iterator[Shape]:
    for x, text, colour in ((16.0, "values", _VALUES[3]), (96.0, "cotangents", _COTANGENTS[3])):
        yield Arrow(((x, 16.0), (x + 22, 16.0)), colour, 3.0)
        yield Label(text, (x + 30, 16.0), starts_here=True)
    yield Label("wide and dark: a large norm", (16, 32), starts_here=True, is_faint=True)

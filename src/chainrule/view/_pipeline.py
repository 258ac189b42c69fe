"""The programs of a function as a graph: what flows between them, forward and back, and what they cost.

`pipeline` draws a function without running it; `gradient_flow` runs it and its gradient, and so has the
values on the links and their cotangents. A cotangent on a link is what its reader alone contributes: the
cotangent of a value is the sum over the links that it takes.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Group as Renderables
from rich.table import Table

from chainrule._describe import describe_array, describe_value
from chainrule._errors import InputError
from chainrule._jaxpr import ClosedJaxpr, JaxprEqn, Var, outside_call_of, plain_text, trace
from chainrule._jaxpr import Literal as Constant
from chainrule._partition import is_array_or_number, seal, unseal
from chainrule._tables import as_text
from chainrule.elimination.internal import program_work
from chainrule.view._arrays import Array, as_numbers, reduced
from chainrule.view._division import (
    Division,
    Section,
    argument_names,
    divide,
    function_of,
    scope_of,
    stage_of,
)
from chainrule.view._graph import (
    Flow,
    Link,
    Part,
    Scale,
    graph,
    norm_of,
    number_text,
    shortened,
)
from chainrule.view._matrix import matrix
from chainrule.view._page import cell, page
from chainrule.view._picture import Box, Drawing, Picture
from chainrule.view._runs import RESULT, ReadPlace, Reads, ReadValues, called, measure_parts

_WIDTH = 79  # characters of its text
_MOST_BOXES = 15  # of parts; more are drawn as a matrix
_MOST_LINES = 60
_FEW = 6  # names of parts that a repr has
_FILLS = {"component": ("#fef3c7", "#d97706"), "jax": ("#ffffff", "#6b7280")}
_INPUT, _OUTPUT = ("#e0e7ff", "#4f46e5"), ("#d1fae5", "#059669")
_HEIGHT = 640  # of the frame in a notebook, until it knows its own
_FRAMEWORKS = {
    "jax": "JAX", "numpy": "NumPy", "torch": "PyTorch", "cupy": "CuPy", "warp": "Warp", "onnx": "ONNX",
    "fmi": "FMU", "command": "command", "device": "GPU",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Pipeline(Picture):
    """The graph of a function's parts. A notebook shows it, rich prints it, `.save("x.html")` keeps it.

    Up to 15 parts are boxes, from the top down. More are a matrix: programs are its rows and columns, values
    stand above the diagonal (in the row of what makes them, in the column of what reads them), and
    cotangents below. The page has both, and shows the fields of a link that is chosen.

    Attributes:
        parts: every part after those it reads.
        links: what flows between arguments, parts and the result.
        arguments: the names of the arguments that are read, in their order.
    """

    parts: tuple[Part, ...]
    links: tuple[Link, ...]
    arguments: tuple[str, ...]

    @property
    def has_values(self) -> bool:
        """Whether the function was run."""
        return any(flow.value is not None for link in self.links for flow in link.flows)

    def __repr__(self) -> str:
        names = [part.name for part in self.parts]
        more = ", …" if len(names) > _FEW else ""
        count = "1 part" if len(names) == 1 else f"{len(names)} parts"
        return f"<Pipeline of {count}: {', '.join(names[:_FEW])}{more}>"

    def __str__(self) -> str:
        return as_text(self, width=_WIDTH).rstrip("\n")

    def __rich__(self) -> Table | Renderables:
        table = Table("", "part", "", "reads", "cost")
        for number, part in enumerate(self.parts):
            sources = (link.source for link in self.links if link.target == number)
            reads = ", ".join(str(source) for source in sources)
            detail = " · ".join(filter(None, (part.detail, part.framework)))
            table.add_row(str(number), self.label(number), detail, reads, part.cost)
        return Renderables(table, self._norms()) if self.has_values else table

    def _norms(self) -> Table:
        table = Table("from", "to", "what", "norm", "cotangent norm", "NaN/inf")
        for link in self.links:
            table.add_row(
                self.label(link.source), self.label(link.target), ", ".join(map(str, link.flows)),
                number_text(link.value_norm), number_text(link.cotangent_norm), str(link.nonfinite or ""),
                style="red" if link.nonfinite else None,
            )  # fmt: skip
        return table

    def label(self, place: int | str) -> str:
        """What a place is called; of several parts of one name, with what it makes or with its number."""
        return place if isinstance(place, str) else self._labels[place]

    @cached_property
    def _labels(self) -> list[str]:
        labels = [part.name for part in self.parts]
        for number in _not_alone(labels):
            if self.parts[number].kind == "jax":
                flows = (f for link in self.links if link.source == number for f in link.flows)
                made = next((flow.name for flow in flows if flow.name), "")
                labels[number] += f" ({made})" if made else ""
        # Calls of one component, and parts that make nothing with a name, in their order.
        numbered: Counter[str] = Counter()
        for number in _not_alone(labels):
            name = labels[number]
            numbered[name] += 1
            labels[number] = f"{name} {numbered[name]}"
        return labels

    def drawing(self) -> Drawing:
        """Boxes from the top down: arguments, parts, result; or a matrix of them."""
        return (
            graph(self._boxes(), self.links) if len(self.parts) <= _MOST_BOXES else self._matrix()
        )

    def html(self) -> str:
        """The picture for a page or a notebook: a frame in which links can be chosen."""
        return cell(self.page(), "Pipeline", _HEIGHT)

    def page(self) -> str:
        """The picture as a whole page that needs nothing else."""
        markup = f'<div class="static">{self.svg()}</div>'
        return page("pipeline.js", "Pipeline", self._data(), markup)

    def _nodes(self) -> list[int | str]:
        return [*self.arguments, *range(len(self.parts)), RESULT]

    def _boxes(self) -> dict[int | str, Box]:
        return {node: self._box(node) for node in self._nodes()}

    def _box(self, node: int | str) -> Box:
        if isinstance(node, int):
            part = self.parts[node]
            lines = (shortened(self.label(node)), *part.lines[1:])
            return Box(lines, *_FILLS[part.kind])
        return Box((shortened(node),), *(_OUTPUT if node == RESULT else _INPUT))

    def _matrix(self) -> Drawing:
        nodes = self._nodes()
        place = {node: k for k, node in enumerate(nodes)}
        values, cotangents = Scale.of_values(self.links), Scale.of_cotangents(self.links)
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
        values, cotangents = Scale.of_values(self.links), Scale.of_cotangents(self.links)
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


def _not_alone(labels: Sequence[str]) -> list[int]:
    """Where a label stands that stands elsewhere, too."""
    count = Counter(labels)
    return [number for number, label in enumerate(labels) if count[label] > 1]


def _flow_data(flow: Flow) -> dict[str, Any]:
    def short(array: Array | None) -> Array | None:
        numbers = None if array is None or not array.size else as_numbers(array)
        return None if numbers is None else reduced(numbers)

    return {
        "name": flow.name,
        "type": flow.type,
        "value": short(flow.value),
        "cotangent": short(flow.cotangent),
        "valueNorm": norm_of([flow.value]),
        "cotangentNorm": norm_of([flow.cotangent]),
        "nonfinite": flow.nonfinite,
    }


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
    program, given = _traced(fun, args)
    division = divide(program)
    seconds = {}
    if measure:
        reads = Reads(division, has_gradient=False)
        found = reads.run(jax.tree.leaves(given))
        seconds = measure_parts(division, reads.values(found), has_gradient=False)
    return _assemble(division, fun, given, seconds, {})


def _traced(fun: Callable[..., Any], args: Sequence[Any]) -> tuple[ClosedJaxpr, Sequence[Any]]:
    """The program of a function, and its arguments without leaves that are part of the program."""
    given = [seal(arg, _is_traced) for arg in args]
    return trace(lambda *sealed: fun(*unseal(sealed)), *given)[0], given


def _is_traced(leaf: Any) -> bool:
    return is_array_or_number(leaf) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


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
    program, given = _traced(fun, args)
    flat = jax.tree.leaves(given)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in flat):
        raise InputError(
            "gradient_flow runs the function, and an argument has a shape and no value. Pass arrays, or draw "
            "the graph alone: view.pipeline(fun, …).",
            code="needs_values",
        )
    _check_scalar(program)
    division = divide(program)
    reads = Reads(division, has_gradient=True)
    found = reads.run(flat)
    seconds = measure_parts(division, reads.values(found), has_gradient=True) if measure else {}
    return _assemble(division, fun, given, seconds, found)


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


def _assemble(
    division: Division,
    fun: Callable[..., Any],
    args: Sequence[Any],
    seconds: Mapping[int, Mapping[str, float]],
    found: ReadValues,
) -> Pipeline:
    sections = enumerate(division.sections)
    parts = tuple(_part(section, seconds.get(k, {})) for k, section in sections)
    links = tuple(_links(division, fun, args, found))
    read = {link.source for link in links}
    arguments = [name for name in argument_names(fun, len(args)) if name in read]
    return Pipeline(parts, links, tuple(arguments))


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
    named = dict.fromkeys(called(call) for call in section.calls)
    names = ", ".join(dict.fromkeys(name for name, _ in named))
    asked = ", ".join(dict.fromkeys(request for _, request in named))
    is_inside = eqn not in section.calls
    return names, f"{asked} in {eqn.primitive.name}" if is_inside else asked


def _links(
    division: Division, fun: Callable[..., Any], args: Sequence[Any], found: ReadValues
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
        is_number = value is not None and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
        return np.asarray(value) if is_number else None  # keys of random numbers have no value

    return Flow(name, describe_array(var.aval), array("primal"), array("cotangent"))


def _argument_of_leaves(fun: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """For every leaf the argument that it is of."""
    names = argument_names(fun, len(args))
    return [name for name, arg in zip(names, args, strict=True) for _ in jax.tree.leaves(arg)]


_PLACE = re.compile(r"(\[\d+\])?")  # of an argument of a callable, which has no name


def _flow_names(division: Division, args: Sequence[Any]) -> dict[ReadPlace, str]:
    """What the arrays on the links are called: as they were sown, or as the components around call them."""
    jaxpr = division.program.jaxpr
    leaves = [path for arg in args for path, _ in jax.tree_util.tree_leaves_with_path(arg)]
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path in leaves]
    made = dict(zip(jaxpr.invars, paths, strict=True))
    for section in division.sections:
        made |= dict(_paths_of(section, "results"))
    places: dict[ReadPlace, str] = {
        (v, RESULT): "" for v in jaxpr.outvars if not isinstance(v, Constant)
    }
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


def _bytes(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _program_text(program: ClosedJaxpr) -> str:
    """The equations of a part, at most `_MOST_LINES` lines."""
    lines = plain_text(program.jaxpr).splitlines()
    hidden = len(lines) - _MOST_LINES
    return "\n".join(lines[:_MOST_LINES] + ([f"… {hidden} more lines"] if hidden > 0 else []))

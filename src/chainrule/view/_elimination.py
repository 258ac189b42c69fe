"""Vertex elimination, drawn step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from chainrule._errors import InputError
from chainrule.elimination import OperationCounts
from chainrule.elimination._choose import OrderLike, choose_order
from chainrule.elimination._counting import count_operations
from chainrule.elimination._linearize import trace_function
from chainrule.view import _svg
from chainrule.view._arguments import leaf_names
from chainrule.view._layout import Layout, lay_out
from chainrule.view._picture import Picture
from chainrule.view._steps import Blocks, Step, Vertex, blocks_of, name_nodes, trace_steps

__all__ = ["EliminationSteps", "elimination"]

_MOST_VERTICES = 60
_RADIUS = 17.0
_CAPTION = 30.0
_LINE = 17.0
_MOST_LINES = 8
_GREY, _NEW, _CHANGED, _FADED = "#6b7280", "#059669", "#d97706", "#d1d5db"


@dataclass(frozen=True)
class EliminationSteps(Picture):
    """A graph and its way to the Jacobian.

    Attributes:
        vertices: all nodes, in the order of the program.
        edges: those of the whole graph, (operand, result) → structure of the local Jacobian.
        steps: the vertices that are eliminated, in order.
        counts: what the whole order costs.
    """

    vertices: tuple[Vertex, ...]
    edges: Blocks = field(repr=False)
    steps: tuple[Step, ...]
    counts: OperationCounts

    def svg(self) -> str:
        """All steps below each other."""
        frames = list(self._frames())
        body, y = [], 0.0
        for frame in frames:
            body.append(f'<g transform="translate(0 {y:.1f})">{"".join(frame.body)}</g>')
            y += frame.height
        return _svg.document(body, max(frame.width for frame in frames), y, self._title)

    def frame(self, number: int) -> str:
        """One picture as SVG: 0 is the whole graph, `n` the graph after the n-th step."""
        frame = list(self._frames())[number]
        return _svg.document(frame.body, frame.width, frame.height, self._title)

    def html(self) -> str:
        """One picture at a time, with a button for each step; no script."""
        frames = [self.frame(k) for k in range(len(self.steps) + 1)]
        # Several pictures may be on one page, so the names of the buttons come from the content.
        group = "e" + hashlib.sha256("".join(frames).encode()).hexdigest()[:10]
        numbers = range(len(frames))
        shown = ",".join(f"#{group}-{k}:checked~.{group}-{k}" for k in numbers)
        style = f".{group}{{display:none;overflow-x:auto}}{shown}{{display:block}}"
        buttons = "".join(
            f'<input type="radio" name="{group}" id="{group}-{k}"{"" if k else " checked"}>'
            f'<label for="{group}-{k}">{self._button(k)}</label> '
            for k in numbers
        )
        pictures = "".join(
            f'<div class="{group} {group}-{k}">{frame}</div>' for k, frame in enumerate(frames)
        )
        return f"<section><style>{style}</style>{buttons}{pictures}</section>"

    @property
    def _title(self) -> str:
        return f"Elimination with {self.counts.multiplications} multiplications"

    def _button(self, number: int) -> str:
        return escape(f"eliminate {self.steps[number - 1].vertex}" if number else "graph")

    def _frames(self) -> Iterator[_Frame]:
        layout = self._layout()
        yield _draw(self, layout, "The graph of local partial derivatives", self.edges, self.edges)
        before, spent = self.edges, 0
        for step in self.steps:
            spent += step.multiplications
            caption = (
                f"Eliminate {step.vertex}: {step.multiplications} multiplications, {spent} so far"
            )
            yield _draw(self, layout, caption, step.edges, before, step)
            before = step.edges

    def _layout(self) -> Layout:
        """One for all steps, with room for the edges that are still to come."""
        all_edges = {}
        for step in reversed(self.steps):
            all_edges.update(step.edges)
        all_edges.update(self.edges)
        texts = [*all_edges.values(), *(vertex.operation for vertex in self.vertices)]
        longest = max(map(len, texts), default=0)
        sizes = {vertex.key: (2 * _RADIUS, 2 * _RADIUS + 24) for vertex in self.vertices}
        return lay_out(sizes, all_edges, between=max(48.0, longest * _svg.CHARACTER + 20))


def elimination(
    fun: Callable[..., Any],
    order: OrderLike,
    *args: Any,
    argnums: int | Sequence[int] | None = None,
) -> EliminationSteps:
    """Draw how the vertices of a function's computational graph are eliminated, one by one.

    Vertex numbers are those of orders: the equations of the flat program, from 1.

    Args:
        fun: a function of pytrees that JAX can trace, small enough to draw.
        order: `"forward"`, `"reverse"`, `"markowitz"`, `"auto"`, vertex numbers, or an `Order`.
        *args: its arguments; only their shapes and dtypes matter.
        argnums: which of them are differentiated; all by default.

    Returns:
        The steps, with the products and the cost of each. A notebook shows them one at a time;
        `.save("x.svg")` writes them below each other.

    Raises:
        InputError: the graph has too many vertices to be drawn.
        OrderError: the order does not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule import view
        >>> steps = view.elimination(lambda x, y: jnp.sin(x * y) + x, "reverse", 0.3, 0.4)
        >>> [(step.vertex, step.multiplications) for step in steps.steps]
        [(2, 1), (1, 2)]
        >>> print(steps.steps[-1].products[0])
        c[3,x] += c[3,1]·c[1,x]
    """
    positions = range(len(args)) if argnums is None else argnums
    positions = (positions,) if isinstance(positions, int) else tuple(positions)
    graph = trace_function(fun, positions, args, {}).graph
    if len(graph.partials) > _MOST_VERTICES:
        raise InputError(
            f"The graph has {len(graph.partials)} vertices; up to {_MOST_VERTICES} can be drawn. Draw a "
            "part of the function, or count with `linearization(fun)(…).counts`.",
            code="graph_too_large",
        )
    counts = count_operations(graph, choose_order(graph, order))
    nodes = name_nodes(graph, leaf_names(fun, args, positions))
    steps = tuple(trace_steps(graph, counts, nodes))
    return EliminationSteps(
        tuple(nodes.values()), blocks_of(graph.structures, nodes), steps, counts
    )


@dataclass(frozen=True)
class _Frame:
    body: list[str]
    width: float
    height: float


def _draw(
    picture: EliminationSteps,
    layout: Layout,
    caption: str,
    edges: Blocks,
    before: Blocks,
    step: Step | None = None,
) -> _Frame:
    """The graph with these edges; those that a step made or changed in colour."""
    lines = _lines(step)
    touched = {(p.operand, p.reader) for p in step.products} if step else set()
    body = [
        _svg.label(caption, (16, 16), "start strong"),
        f'<g transform="translate(0 {_CAPTION})">',
    ]
    for edge in edges:
        colour = _GREY if edge not in touched else _CHANGED if edge in before else _NEW
        body.append(_svg.arrow(layout.routes[edge], colour, 1.2 if colour == _GREY else 2.0))
    left = {key for edge in edges for key in edge}
    body.extend(_node(v, layout.places[v.key], v.key in left) for v in picture.vertices)
    for edge, text in edges.items():
        x, y = layout.middle(edge)
        body.append(_svg.label(text, (x, y - 7), "faint halo"))
    body.append("</g>")
    y = _CAPTION + layout.size[1]
    body.extend(
        _svg.label(line, (16, y + k * _LINE), "start faint") for k, line in enumerate(lines)
    )
    longest = max(map(len, [caption, *lines]))
    width = max(layout.size[0], longest * _svg.CHARACTER + 32)
    return _Frame(body, width, y + len(lines) * _LINE + 12)


def _lines(step: Step | None) -> list[str]:
    if step is None:
        return []
    lines = [str(product) for product in step.products[:_MOST_LINES]]
    hidden = len(step.products) - _MOST_LINES
    return [*lines, f"and {hidden} more"] if hidden > 0 else lines


def _node(vertex: Vertex, place: tuple[float, float], is_left: bool) -> str:
    if not vertex.operation:
        fill, stroke = "#e0e7ff", "#4f46e5"
    elif vertex.is_output:
        fill, stroke = "#d1fae5", "#059669"
    else:
        fill, stroke = "#ffffff", _GREY
    if not is_left:
        fill, stroke = "#ffffff", _FADED
    name = _svg.label(vertex.key, place, "strong" if is_left else "faint")
    operation = _svg.label(vertex.operation, (place[0], place[1] + _RADIUS + 9), "faint halo")
    return _svg.circle(place, _RADIUS, fill, stroke) + name + operation

"""Elimination of vertices and edges, step by step: what happens to the graph, and a picture of it."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from chainrule._errors import InputError
from chainrule._jaxpr import Var
from chainrule.elimination import OperationCounts
from chainrule.elimination.internal import (
    STRUCTURES,
    Edges,
    Elimination,
    Graph,
    OrderLike,
    OrderStep,
    choose_order,
    count_operations,
    trace_function,
)
from chainrule.view._division import function_of, leaf_names, stage_of
from chainrule.view._layout import Layout, lay_out
from chainrule.view._matrix import matrix
from chainrule.view._page import cell, page
from chainrule.view._picture import (
    CHARACTER,
    Arrow,
    Circle,
    Drawing,
    Group,
    Label,
    Picture,
    Shape,
    document,
)

Blocks = dict[tuple[str, str], str]
"""(operand, result) → the structure of the block on that edge."""


@dataclass(frozen=True)
class Vertex:
    """A node of the graph.

    Attributes:
        key: its number in orders, from 1, as text; for an input its name. An equation with several results
            has several nodes: `3`, `3b`, …
        operation: the primitive; empty for inputs.
        is_output: whether a row of the Jacobian belongs to it.
        stage: the `jax.named_scope` or the function that it is in; vertices of one stage collapse in the
            matrix.
    """

    key: str
    operation: str
    is_output: bool
    stage: str = ""


@dataclass(frozen=True)
class Product:
    """c[reader, operand] = c[reader, via] · c[via, operand], or += where the edge was there before."""

    reader: str
    via: str
    operand: str
    is_added: bool

    def __str__(self) -> str:
        sign = "+=" if self.is_added else "="
        return (
            f"c[{self.reader},{self.operand}] {sign} "
            f"c[{self.reader},{self.via}]·c[{self.via},{self.operand}]"
        )


@dataclass(frozen=True)
class Step:
    """The elimination of one vertex, or of one edge ahead of its vertex.

    Attributes:
        vertex: its number.
        multiplications: what it costs, by the convention of the literature.
        products: the chain rule, edge by edge.
        edges: those that are left afterwards, (operand, result) → structure of the block.
        edge: (operand, result) of the edge that is eliminated; `None` where the whole vertex is.
    """

    vertex: int
    multiplications: int
    products: tuple[Product, ...]
    edges: Blocks = field(repr=False)
    edge: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        """What is eliminated: `3`, or `2 → 3` for an edge."""
        return str(self.vertex) if self.edge is None else " → ".join(self.edge)


def name_nodes(graph: Graph, inputs: Sequence[str]) -> dict[Any, Vertex]:
    """Every variable of the graph, in the order of the program, as a node with a name."""
    nodes = {
        var: Vertex(name, "", var in graph.outputs)
        for var, name in zip(graph.inputs, inputs, strict=True)
    }
    for number in graph.partials:
        eqn = graph.equation(number)
        operation, stage = eqn.primitive.name, stage_of(eqn) or function_of(eqn) or ""
        shown = [var for var in graph.nodes(number) if var in graph.structures]
        for k, var in enumerate(shown):
            key = str(number) if k == 0 else f"{number}{_suffix(k)}"
            nodes[var] = Vertex(key, operation, var in graph.outputs, stage)
    return nodes


def _suffix(position: int) -> str:
    return chr(ord("a") + position) if position < 26 else f".{position}"


def blocks_of(edges: Edges, nodes: Mapping[Var, Vertex]) -> Blocks:
    """The edges by name."""
    return {
        (nodes[operand].key, nodes[result].key): _kind(structure)
        for result, row in edges.items()
        for operand, structure in row.items()
    }


def _kind(structure: Any) -> str:
    """The structure without its shape; nothing for an ordinary number."""
    return "" if structure.kind == "scalar" else structure.kind


def trace_steps(
    graph: Graph, order: Sequence[OrderStep], counts: OperationCounts, nodes: Mapping[Var, Vertex]
) -> Iterator[Step]:
    """The steps of an order, with what they were counted to cost; those that touch nothing are left out."""
    state = Elimination(graph, graph.structures, STRUCTURES)
    for each, (vertex, multiplications) in zip(order, counts.per_vertex, strict=True):
        joined = list(_joined(graph, state, each))
        edge = _edge(graph, state, each, nodes)
        existing = {(reader, operand) for reader, row in state.rows.items() for operand in row}
        state.eliminate(each)
        if joined:
            products = _products(joined, existing, nodes)
            yield Step(vertex, multiplications, products, blocks_of(state.rows, nodes), edge)


_Path = tuple[Var, Var, Var]


def _joined(graph: Graph, state: Elimination, step: OrderStep) -> Iterator[_Path]:
    """(reader, vertex, operand) for every edge out of a vertex and every edge into it.

    Of an edge step: for that edge, and every edge on the vertex's other side.
    """
    if isinstance(step, tuple):
        for operand, result in _between(graph, state, step):
            if operand in graph.nodes(step[0]):
                yield from ((result, operand, inner) for inner in state.rows.get(operand, ()))
            else:
                yield from ((reader, result, operand) for reader in state.readers.get(result, ()))
        return
    for node in graph.nodes(step):
        for reader in state.readers.get(node, ()):
            for operand in state.rows.get(node, ()):
                yield reader, node, operand


def _between(graph: Graph, state: Elimination, step: tuple[int, int]) -> Iterator[tuple[Var, Var]]:
    """(operand, result) of the edges between a vertex and its neighbour, whichever way they go."""
    vertex, neighbour = step
    for node in graph.nodes(vertex):
        for end in graph.ends(neighbour):
            if node in state.rows.get(end, ()):
                yield node, end
            elif end in state.rows.get(node, ()):
                yield end, node


def _edge(
    graph: Graph, state: Elimination, step: OrderStep, nodes: Mapping[Var, Vertex]
) -> tuple[str, str] | None:
    """The names of the edge that a step eliminates; of several between the same two, the first."""
    found = _between(graph, state, step) if isinstance(step, tuple) else iter(())
    return next(((nodes[operand].key, nodes[result].key) for operand, result in found), None)


def _products(
    joined: Sequence[_Path], existing: set[tuple[Var, Var]], nodes: Mapping[Var, Vertex]
) -> tuple[Product, ...]:
    products = []
    for reader, via, operand in joined:
        is_added = (reader, operand) in existing
        names = nodes[reader].key, nodes[via].key, nodes[operand].key
        products.append(Product(*names, is_added))
        existing.add((reader, operand))
    return tuple(products)


_MOST_VERTICES = 400
_MOST_CIRCLES = 30  # of vertices; more are drawn as a matrix
_HEIGHT = 640  # of the frame of a matrix in a notebook, until it knows its own
_RADIUS = 17.0
_CAPTION = 30.0
_LINE = 17.0
_SHORTEST = 48  # characters of a heading that is not broken
_MOST_LINES = 8
_GREY, _NEW, _CHANGED, _FADED = "#6b7280", "#059669", "#d97706", "#d1d5db"
_FIRST, _LATER = "#818cf8", "#34d399"  # edges of the graph, and those that come later
_COLOURS = {
    "argument": ("#e0e7ff", "#4f46e5"),
    "result": ("#d1fae5", "#059669"),
    "jax": ("#ffffff", _GREY),
}


@dataclass(frozen=True, repr=False)
class EliminationSteps(Picture):
    """A graph and its way to the Jacobian.

    Graphs of up to 30 vertices are drawn with circles and arrows, in the same places for every order. Larger
    ones are a matrix: a vertex is a row and a column, an edge is in the row of its operand and the column of
    its result. The picture of a matrix has the edges of the graph in violet and all that come later in green.

    Attributes:
        vertices: all nodes, in the order of the program.
        edges: those of the whole graph, (operand, result) → structure of the local Jacobian.
        steps: the vertices and edges that are eliminated, in order.
        counts: what the whole order costs.
        is_auto: whether the order is that of `"auto"`.
    """

    vertices: tuple[Vertex, ...]
    edges: Blocks
    steps: tuple[Step, ...]
    counts: OperationCounts
    is_auto: bool = False

    def __repr__(self) -> str:
        return f"<{self.title}, {len(self.steps)} steps>"

    @property
    def is_matrix(self) -> bool:
        """Whether the graph is too large for circles and arrows."""
        return len(self.vertices) > _MOST_CIRCLES

    def drawing(self) -> Drawing:
        """All steps below each other; of a large graph one matrix."""
        if self.is_matrix:
            return self._matrix()
        frames = list(self._frames())
        groups, y = [], 0.0
        for frame in frames:
            groups.append(Group(frame.shapes, (0.0, y)))
            y += frame.height
        return Drawing(tuple(groups), max(frame.width for frame in frames), y, self.title)

    def frame(self, number: int) -> str:
        """One picture as SVG: 0 is the whole graph, `n` the graph after the n-th step."""
        if self.is_matrix:
            return document(self._matrix(number))
        return document(list(self._frames())[number])

    def html(self) -> str:
        """One picture at a time: with a button for each step and no script, or a matrix with a slider."""
        return cell(self.page(), "Elimination", _HEIGHT) if self.is_matrix else self._frames_html()

    def page(self) -> str:
        """The picture as a whole page that needs nothing else."""
        if not self.is_matrix:
            return super().page()
        markup = f'<div class="static">{self.svg()}</div>'
        return page("elimination.js", "Elimination", self._data(), markup)

    def _frames_html(self) -> str:
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
            f'<div class="{group} {group}-{k}" tabindex="0">{frame}</div>'
            for k, frame in enumerate(frames)
        )
        return f"<section><style>{style}</style>{buttons}{pictures}</section>"

    @property
    def title(self) -> str:
        """What it all costs, in words.

        `"auto"` minimises nontrivial multiplications, the others are free for a compiled program; the
        literature counts all. So both are said.
        """
        counts = self.counts
        goal = "; auto minimises these" if self.is_auto else ""
        return (
            f"Elimination with {_times(counts.multiplications)}, {counts.nontrivial} nontrivial "
            f"(not by ±1, not of two constants){goal}"
        )

    def _button(self, number: int) -> str:
        return escape(f"eliminate {self.steps[number - 1].title}" if number else "graph")

    def _frames(self) -> Iterator[Drawing]:
        layout = self._layout()
        yield _draw(self, layout, self.title, self.edges, self.edges)
        before, spent = self.edges, 0
        for step in self.steps:
            spent += step.multiplications
            caption = f"Eliminate {step.title}: {_times(step.multiplications)}, {spent} so far"
            yield _draw(self, layout, caption, step.edges, before, step)
            before = step.edges

    def _matrix(self, number: int | None = None) -> Drawing:
        """The graph after a step; without one, its edges and all that come later."""
        place = {vertex.key: k for k, vertex in enumerate(self.vertices)}
        shown: Blocks = dict(self.edges)
        if number is None:
            for step in self.steps:
                shown |= step.edges
        elif number:
            shown = self.steps[number - 1].edges
        cells = {(place[a], place[b]): _FIRST if (a, b) in self.edges else _LATER for a, b in shown}
        labels = [f"{vertex.key} {vertex.operation}".strip() for vertex in self.vertices]
        fills = [_colours(vertex)[0] for vertex in self.vertices]
        return matrix(labels, fills, cells, self.title)

    def _data(self) -> dict[str, Any]:
        """What the script of the page reads: edges with the steps between which they are there."""
        place = {vertex.key: k for k, vertex in enumerate(self.vertices)}
        return {
            "title": self.title,
            "nodes": [
                {
                    "name": f"{vertex.key} {vertex.operation}".strip(),
                    "stage": vertex.stage,
                    "kind": _kind_of(vertex),
                }
                for vertex in self.vertices
            ],
            "edges": [
                {
                    "row": place[a],
                    "column": place[b],
                    "born": born,
                    "died": died,
                    "structure": structure,
                }
                for (a, b), born, died, structure in self._lives()
            ],
            "steps": [
                {
                    "title": step.title,
                    "cost": step.multiplications,
                    "lines": _lines(step),
                    "changed": [[place[p.operand], place[p.reader]] for p in step.products],
                }
                for step in self.steps
            ],
        }

    def _lives(self) -> Iterator[tuple[tuple[str, str], int, int, str]]:
        """Every edge with the first step after which it is there, the first after which it is not, and its
        structure; once more where its structure changes."""
        there = dict.fromkeys(self.edges, 0)
        before = self.edges
        for number, step in enumerate(self.steps, start=1):
            for edge, structure in before.items():
                if step.edges.get(edge) != structure:
                    yield edge, there.pop(edge), number, structure
            there |= {edge: number for edge in step.edges if edge not in there}
            before = step.edges
        for edge, structure in before.items():
            yield edge, there[edge], len(self.steps) + 1, structure

    def _layout(self) -> Layout:
        """Of the graph alone: the same for all steps, and for all orders, so that they can be compared."""
        texts = [*self.edges.values(), *(vertex.operation for vertex in self.vertices)]
        longest = max(map(len, texts), default=0)
        sizes = {vertex.key: (2 * _RADIUS, 2 * _RADIUS + 24) for vertex in self.vertices}
        return lay_out(sizes, self.edges, between=max(72.0, longest * CHARACTER + 20))


def elimination(
    fun: Callable[..., Any],
    order: OrderLike,
    *args: Any,
    argnums: int | Sequence[int] | None = None,
) -> EliminationSteps:
    """Draw how the vertices of a function's computational graph are eliminated, one by one.

    Every order of the same function has the same layout, so that two can be compared. Graphs of more than 30
    vertices are a matrix. Vertex numbers are those of orders: the equations of the flat program, from 1.
    Orders with single edges, as `find_order(…, edges=True)` finds them, are drawn edge by edge where they
    have them.

    Args:
        fun: a function of pytrees that JAX can trace, of at most 400 equations.
        order: `"forward"`, `"reverse"`, `"markowitz"`, `"auto"` (the order that `jacobian` takes, which
            minimises nontrivial multiplications), vertex numbers and pairs of them for edges, or an `Order`.
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
    taken = choose_order(graph, order)
    counts = count_operations(graph, taken)
    nodes = name_nodes(graph, leaf_names(fun, args, positions))
    steps = tuple(trace_steps(graph, taken, counts, nodes))
    edges = blocks_of(graph.structures, nodes)
    is_auto = isinstance(order, str) and order == "auto"
    return EliminationSteps(tuple(nodes.values()), edges, steps, counts, is_auto)


def _draw(
    picture: EliminationSteps,
    layout: Layout,
    caption: str,
    edges: Blocks,
    before: Blocks,
    step: Step | None = None,
) -> Drawing:
    """The graph with these edges; those that a step made or changed in colour."""
    lines = _lines(step)
    fits = max(_SHORTEST, int((layout.size[0] - 32) / CHARACTER))
    # Room for the longest heading, so that the graph is at the same place in every frame.
    top = _CAPTION + (len(textwrap.wrap(picture.title, fits)) - 1) * _LINE
    touched = {(p.operand, p.reader) for p in step.products} if step else set()
    graph: list[Shape] = []
    if step and step.edge and step.edge not in edges:
        graph.append(Arrow(layout.route(step.edge), _FADED, is_dashed=True))
    for edge in edges:
        colour = _GREY if edge not in touched else _CHANGED if edge in before else _NEW
        graph.append(Arrow(layout.route(edge), colour, 1.2 if colour == _GREY else 2.0))
    left = {key for edge in edges for key in edge}
    for vertex in picture.vertices:
        graph.extend(_node(vertex, layout.places[vertex.key], vertex.key in left))
    for edge, text in edges.items():
        x, y = layout.middle(edge)
        graph.append(Label(text, (x, y - 7), is_faint=True, has_halo=True))
    y = top + layout.size[1]
    text_lines = (
        Label(line, (16, y + k * _LINE), starts_here=True, is_faint=True)
        for k, line in enumerate(lines)
    )
    heads = textwrap.wrap(caption, fits)
    heading = (
        Label(head, (16, 16 + k * _LINE), starts_here=True, is_strong=True)
        for k, head in enumerate(heads)
    )
    longest = max(map(len, [*heads, *lines]))
    width = max(layout.size[0], longest * CHARACTER + 32)
    shapes: tuple[Shape, ...] = (*heading, Group(tuple(graph), (0.0, top)), *text_lines)
    return Drawing(shapes, width, y + len(lines) * _LINE + 12, picture.title)


def _times(count: int) -> str:
    return f"{count} multiplication" if count == 1 else f"{count} multiplications"


def _lines(step: Step | None) -> list[str]:
    if step is None:
        return []
    lines = [str(product) for product in step.products[:_MOST_LINES]]
    hidden = len(step.products) - _MOST_LINES
    return [*lines, f"and {hidden} more"] if hidden > 0 else lines


def _kind_of(vertex: Vertex) -> str:
    if not vertex.operation:
        return "argument"
    return "result" if vertex.is_output else "jax"


def _colours(vertex: Vertex) -> tuple[str, str]:
    """Fill and stroke."""
    return _COLOURS[_kind_of(vertex)]


def _node(vertex: Vertex, place: tuple[float, float], is_left: bool) -> Iterator[Shape]:
    fill, stroke = _colours(vertex) if is_left else ("#ffffff", _FADED)
    yield Circle(place, _RADIUS, fill, stroke)
    yield Label(vertex.key, place, is_strong=is_left, is_faint=not is_left)
    below = place[0], place[1] + _RADIUS + 9
    yield Label(vertex.operation, below, is_faint=True, has_halo=True)

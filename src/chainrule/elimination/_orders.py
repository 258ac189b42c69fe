"""Elimination orders: the classical ones, and checking one that somebody gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from chainrule._errors import InputError
from chainrule.elimination._convention import (
    kept_edges,
    kept_multiplications,
    kept_product,
    kept_sum,
)
from chainrule.elimination._eliminate import Algebra, Elimination, Step
from chainrule.elimination._graph import Graph
from chainrule.elimination._order import as_step


class OrderError(InputError):
    """An elimination order that does not fit the function."""

    default_code = "bad_order"


def forward_order(graph: Graph) -> tuple[int, ...]:
    """From the inputs on: forward accumulation."""
    return graph.required


def reverse_order(graph: Graph) -> tuple[int, ...]:
    """From the outputs back: reverse accumulation."""
    return tuple(reversed(graph.required))


def markowitz_order(graph: Graph) -> tuple[int, ...]:
    """Always the vertex that is cheapest to eliminate now; the earlier one among equals."""
    costs = _GreedyCosts(graph)
    order = []
    remaining = list(graph.required)
    while remaining:
        vertex = min(remaining, key=costs.of)
        costs.eliminate(vertex)
        remaining.remove(vertex)
        order.append(vertex)
    return tuple(order)


_KEPT = Algebra(kept_product, kept_sum, lambda edge: edge.is_zero)


class _GreedyCosts:
    """The cost of eliminating each vertex next, kept up to date."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._state = Elimination(graph, kept_edges(graph), _KEPT)
        self._vertex_of = {node: v for v in graph.partials for node in graph.nodes(v)}
        self._known: dict[int, int] = {}

    def of(self, vertex: int) -> int:
        if vertex not in self._known:
            rows, readers = self._state.rows, self._state.readers
            self._known[vertex] = sum(
                kept_multiplications(rows[reader][node], inner)
                for node in self._graph.nodes(vertex)
                for reader in readers.get(node, ())
                for inner in rows.get(node, {}).values()
            )
        return self._known[vertex]

    def eliminate(self, vertex: int) -> None:
        for node in self._graph.nodes(vertex):
            for touched in (*self._state.readers.get(node, ()), *self._state.rows.get(node, ())):
                self._known.pop(self._vertex_of.get(touched, 0), None)
        self._state.eliminate(vertex)


def check_order(graph: Graph, order: Iterable[Step]) -> tuple[Step, ...]:
    """The order as a tuple, or an error that lists what is wrong with it.

    Vertices that need no elimination (dead ones, pure outputs) may be left out or put in. Single edges,
    written (vertex, neighbour), may come before their vertex.
    """
    try:
        steps = tuple(as_step(step) for step in order)
    except (TypeError, ValueError):
        raise OrderError(
            "An elimination order is a name, vertex numbers (pairs of them for edges), or what `find_order` "
            f"returns; found {order!r:.80}.",
        ) from None
    vertices = [step for step in steps if isinstance(step, int)]
    edges = [step for step in steps if isinstance(step, tuple)]
    missing = sorted(set(graph.required) - set(vertices))
    repeated = sorted(v for v, count in Counter(vertices).items() if count > 1)
    unknown = sorted({v for v in vertices if not 1 <= v <= graph.size})
    unknown += sorted(v for v, end in edges if not _is_edge(graph, v, end))
    if not (missing or repeated or unknown):
        return steps
    parts = []
    if missing:
        parts.append(f"missing: {', '.join(map(graph.describe, missing[:6]))}{_more(missing)}")
    if repeated:
        parts.append(f"more than once: {_list(repeated)}")
    if unknown:
        parts.append(f"unknown (vertices are numbered from 1 to {graph.size}): {_list(unknown)}")
    raise OrderError(
        "An elimination order names every vertex that another one reads exactly once. "
        f"In the given order of {len(vertices)} vertices, "
        + "; ".join(parts)
        + ". Use order='reverse', 'forward', 'markowitz' or 'auto' for a complete one.",
        details={"missing": missing, "repeated": repeated, "unknown": unknown},
    )


def _is_edge(graph: Graph, vertex: int, neighbour: int) -> bool:
    """Whether an edge between the two may be eliminated: an output has to keep its edges to inputs."""
    if not (1 <= vertex <= graph.size and -len(graph.inputs) < neighbour <= graph.size):
        return False
    is_output = not graph.outputs.isdisjoint(graph.nodes(vertex))
    return neighbour > vertex or not is_output


def _list(vertices: Sequence[int]) -> str:
    return ", ".join(map(str, vertices[:12])) + _more(vertices, 12)


def _more(items: Sequence[int], shown: int = 6) -> str:
    return f" and {len(items) - shown} more" if len(items) > shown else ""

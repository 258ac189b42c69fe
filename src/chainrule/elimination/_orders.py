"""Elimination orders: an order as a value, the classical ones, and the check of one that a user gave."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chainrule._errors import InputError
from chainrule._jaxpr import plain_text
from chainrule.elimination._counting import (
    kept_edges,
    kept_multiplications,
    kept_product,
    kept_sum,
)
from chainrule.elimination._display import order_html
from chainrule.elimination._eliminate import Algebra, Elimination, Step
from chainrule.elimination._graph import Graph

COST_MODEL = 3
"""Raised whenever structures or costs change, so that stored orders are not taken for current ones."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_NUMBER = re.compile(r"(?:[-+]?\d[-+.\de]*|[-+]?nan|[-+]?inf)(?=:b?f\d+\[\])")


def fingerprint(graph: Graph, *, with_numbers: bool = True) -> str:
    """A hash of what decides an order's cost: equations, parameters, shapes, what is differentiated.

    Names of variables, values of constant arrays and memory addresses do not enter.

    Args:
        graph: of the function.
        with_numbers: whether the floating-point numbers in its equations do. A multiplication by 1 costs
            less than one by 2.
    """
    jaxpr = graph.program.jaxpr
    places = {var: k for k, var in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    wanted = [places[var] for var in graph.inputs]
    text = _ADDRESS.sub("", plain_text(jaxpr))
    text = text if with_numbers else _NUMBER.sub("", text)
    content = json.dumps([COST_MODEL, text, wanted, len(graph.targets)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Order:
    """An elimination order and what is known about it.

    Attributes:
        vertices: equation numbers, from 1, in the order of elimination. A pair of numbers is a single
            edge, eliminated before the rest of the first vertex; inputs are 0, -1, -2, …
        fingerprint: of the program it was found for; it is refused for another.
        objective: what the cost counts.
        cost: of this order.
        bound: no order of vertices costs less, by minimal cuts or, for few vertices, because all were
            tried; `None` when no bound is known.
        method: what found it.
        seconds: how long that took.
    """

    vertices: tuple[Step, ...]
    fingerprint: str
    objective: str = "multiplications"
    cost: int | None = None
    bound: int | None = None
    method: str = field(default="given", compare=False)
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vertices", tuple(map(as_step, self.vertices)))

    @property
    def optimal(self) -> bool:
        """Whether the lower bound proves that no vertex elimination order is cheaper."""
        return self.bound is not None and self.cost is not None and self.cost <= self.bound

    @property
    def gap(self) -> float | None:
        """How far, relatively, the cost is above the bound; `None` without a bound."""
        if self.bound is None or self.cost is None:
            return None
        return 0.0 if self.optimal else self.cost / max(1, self.bound) - 1.0

    def __len__(self) -> int:
        return len(self.vertices)

    def _repr_html_(self) -> str:
        return order_html(self)

    def to_json(self) -> str:
        """The order as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Order:
        """The inverse of `to_json`.

        Raises:
            InputError: the text is not an order.
        """
        try:
            fields = json.loads(text)
            for name, value in fields.items():
                if not isinstance(value, _KINDS.get(name, object)):
                    raise TypeError(f"{name} is {value!r:.40}")
            return cls(**fields)
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"Expected the JSON that `Order.to_json` writes, found something else: {error}.",
                code="bad_order",
            ) from None


_KINDS: dict[str, Any] = {
    "vertices": list, "fingerprint": str, "objective": str, "cost": int | None, "bound": int | None,
    "method": str, "seconds": float | int,
}  # fmt: skip


def as_step(step: Any) -> Step:
    """A vertex number, or the two of an edge, as plain integers.

    Raises:
        TypeError: it is neither.
        ValueError: it is a sequence of another length.
    """
    if isinstance(step, Sequence):
        vertex, neighbour = step
        return operator.index(vertex), operator.index(neighbour)
    return operator.index(step)


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

"""Elimination orders: as values, the classical ones, and finding a cheap one.

`find_order` searches for as long as the user says. `choose_order` turns what a user says about the order
(`order="auto"`, a name, vertices, an `Order`) into steps; its searches are short and the same everywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import numbers
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from chainrule._errors import InputError
from chainrule._jaxpr import Var, plain_text
from chainrule._lru_cache import LRUCache
from chainrule._progress import progress_bar
from chainrule._tables import html_table
from chainrule.elimination._counting import (
    count_operations,
    kept_edges,
    kept_multiplications,
    kept_product,
    kept_sum,
)
from chainrule.elimination._eliminate import EdgeAlgebra, Elimination
from chainrule.elimination._graph import Graph
from chainrule.elimination._linearize import as_examples, trace_function
from chainrule.elimination._objectives import (
    OBJECTIVES,
    Objective,
    as_problem,
    is_wide,
    quick_order,
    vertices_of,
)
from chainrule.elimination._search import (
    FoundOrder,
    OrderStep,
    PartialGraph,
    Problem,
    search,
    split_edges,
)

COST_MODEL = 3
"""Raised whenever structures or costs change, so that stored orders are not taken for current ones."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_NUMBER = re.compile(r"(?:[-+]?\d[-+.\de]*|[-+]?nan|[-+]?inf)(?=:b?f\d+\[\])")

_MOST_VERTICES = 60
"""That a notebook shows of an order."""


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

    vertices: tuple[OrderStep, ...]
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
        found = self.cost is not None
        verdict = (
            "optimal"
            if self.optimal
            else "no bound known"
            if self.gap is None
            else f"at most {self.gap:.1%} above the optimum"
        )
        shown = " ".join(map(str, self.vertices[:_MOST_VERTICES]))
        more = len(self) - _MOST_VERTICES
        facts = {
            self.objective: f"{self.cost:,} ({verdict})" if found else "not counted",
            "lower bound": "unknown" if self.bound is None else f"{self.bound:,}",
            "found by": f"{self.method} in {self.seconds:.3g} s",
            f"{len(self)} vertices": f"{shown} … and {more} more" if more > 0 else shown,
        }
        return "<strong>Order</strong>" + html_table(facts.items(), has_row_heads=True)

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


def as_step(step: Any) -> OrderStep:
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


_KEPT = EdgeAlgebra(kept_product, kept_sum, lambda edge: edge.is_zero)


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


def check_order(graph: Graph, order: Iterable[OrderStep]) -> tuple[OrderStep, ...]:
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


# --- Finding one.


def find_order(
    fun: Callable[..., Any],
    *example_args: Any,
    argnums: int | Sequence[int] | None = None,
    objective: Objective = "multiplications",
    budget_s: float = 1.0,
    seed: int = 0,
    progress: bool = True,
    edges: bool = False,
) -> Order:
    """Search for a cheap elimination order of `fun` at arguments of the given shapes.

    The result is a value: pass it as `order`, and keep it as JSON (`Order.to_json`). It is stored nowhere
    else: `order="auto"` does not know of it.

    Args:
        fun: a function of pytrees that JAX can trace.
        *example_args: arguments; only their shapes and dtypes matter, so `jax.ShapeDtypeStruct`s will do.
        argnums: which of them are differentiated; all by default.
        objective: what is made small: `"multiplications"` by the convention of the literature,
            `"nontrivial"` ones (neither by ±1 nor of two constants), `"operations"` (nontrivial
            multiplications and additions), `"time"` (picoseconds of products and sums by the cost model),
            or `"memory"` (entries that products write).
        budget_s: seconds to search; proven optima end it sooner. Interrupting keeps the best so far.
        seed: of all random choices. The clock decides how far a search gets: give it time to spare for the
            same order on every machine.
        progress: show a bar with the best cost so far, on a terminal, once the search has taken two seconds.
        edges: also eliminate single edges ahead of their vertices where that is cheaper, which can beat
            every order of vertices. Takes up to as long again; bounds are those of vertex orders.

    Returns:
        An `Order` for the `order` argument of `jacobian` and friends.

    Example:
        >>> order = find_order(lambda x, y: x * y * x, 1.0, 2.0)
        >>> order.cost, order.optimal
        (2, True)
    """
    if argnums is None:
        argnums = tuple(range(len(example_args)))
    _check_search(objective, budget_s, seed)
    graph = trace_function(fun, argnums, as_examples(example_args), {}).graph
    problem, nodes = as_problem(graph, objective)
    limit = budget_s if math.isfinite(budget_s) else None
    with progress_bar("searching", limit, show=progress) as advance:

        def report(best: FoundOrder, elapsed: float) -> None:
            advance(elapsed, f"best {best.cost}")

        found = search(
            problem, budget_s=budget_s, seed=seed, reverse_first=is_wide(graph), on_progress=report
        )  # fmt: skip
    vertices = vertices_of(graph, [nodes[k] for k in found.order])
    order = Order(
        vertices=vertices, fingerprint=fingerprint(graph), objective=objective,
        cost=_cost(graph, vertices, objective, found.cost), bound=found.bound,
        method=found.method, seconds=round(found.seconds, 4),
    )  # fmt: skip
    if edges and not found.is_interrupted:
        return _with_edges(graph, order, problem, nodes, found, budget_s)
    return order


def _check_search(objective: Any, budget_s: Any, seed: Any) -> None:
    if objective not in OBJECTIVES:
        raise InputError(
            f"There is no objective {objective!r}; it is one of {', '.join(map(repr, OBJECTIVES))}.",
            code="unknown_objective",
        )
    if not isinstance(budget_s, numbers.Real) or not float(budget_s) >= 0:
        raise InputError(
            f"budget_s is a number of seconds, 0 or more; found {budget_s!r}.", code="bad_budget"
        )
    if not isinstance(seed, numbers.Integral):
        raise InputError(f"seed is an integer; found {seed!r}.", code="bad_seed")


def _with_edges(
    graph: Graph,
    order: Order,
    problem: Problem,
    nodes: Sequence[Var],
    found: FoundOrder,
    budget_s: float,
) -> Order:
    """The order with single edges where that is cheaper; as it was otherwise."""
    start = time.perf_counter()
    steps, cost = split_edges(PartialGraph(problem), found.order, budget_s=budget_s)
    taken = _steps_of(graph, nodes, steps)
    better = replace(
        order, vertices=taken, cost=_cost(graph, taken, order.objective, cost), method="edges",
        seconds=round(order.seconds + time.perf_counter() - start, 4),
    )  # fmt: skip
    return better if (better.cost or 0) < (order.cost or 0) else order


def _steps_of(
    graph: Graph, nodes: Sequence[Var], steps: Sequence[int | tuple[int, int]]
) -> tuple[OrderStep, ...]:
    """Steps between nodes as steps between vertices."""
    numbers: dict[Var, int] = {var: -k for k, var in enumerate(graph.inputs)}
    numbers |= {node: v for v in graph.partials for node in graph.nodes(v)}
    named = [
        (numbers[nodes[step[0]]], numbers[nodes[step[1]]])
        if isinstance(step, tuple)
        else numbers[nodes[step]]
        for step in steps
    ]
    return tuple(dict.fromkeys(named))


def _cost(graph: Graph, vertices: Sequence[OrderStep], objective: str, counted: int) -> int:
    """Recounted by the counter, where it knows the objective: it does not share code with the search."""
    if objective not in ("multiplications", "nontrivial"):
        return counted
    return getattr(count_operations(graph, vertices), objective)


# --- From what a user says to steps.

OrderLike = str | Sequence[OrderStep] | Order
"""`"auto"`, `"forward"`, `"reverse"`, `"markowitz"`, vertex numbers (pairs of them for edges), an `Order`."""

_MOST_SEARCHED = 2000
"""Larger graphs are not searched."""

_searches: LRUCache[tuple[str, tuple[int, ...]], tuple[OrderStep, ...]] = LRUCache(512)
"""By program and required vertices: which edges there are can depend on constants, such as indices."""


def _searched(graph: Graph) -> tuple[OrderStep, ...]:
    """An order with few nontrivial multiplications: the same one in every process."""
    if not _is_worth_a_search(graph):
        return _narrow_side_first(graph)
    key = (fingerprint(graph), graph.required)
    known = _searches.get(key)
    if known is None:
        known = quick_order(graph)
        _searches.put(key, known)
    return known


def _is_worth_a_search(graph: Graph) -> bool:
    return 2 <= len(graph.required) <= _MOST_SEARCHED


def _narrow_side_first(graph: Graph) -> tuple[int, ...]:
    return reverse_order(graph) if is_wide(graph) else forward_order(graph)


_NAMED: dict[str, Callable[[Graph], tuple[OrderStep, ...]]] = {
    "auto": _searched,
    "forward": forward_order,
    "fwd": forward_order,
    "reverse": reverse_order,
    "rev": reverse_order,
    "markowitz": markowitz_order,
}


def choose_order(graph: Graph, order: OrderLike) -> tuple[OrderStep, ...]:
    """The vertices in the order in which to eliminate them.

    Raises:
        OrderError: an unknown name, a sequence that does not fit the graph, or an `Order` that was found
            for another program.
    """
    if isinstance(order, Order):
        return check_order(graph, _own_vertices(graph, order))
    if not isinstance(order, str):
        return check_order(graph, order)
    if order not in _NAMED:
        raise OrderError(
            f"There is no order called {order!r}. Named orders are {', '.join(map(repr, _NAMED))}; "
            "otherwise pass vertex numbers or what `find_order` returns.",
            code="unknown_order",
        )
    return _NAMED[order](graph)


def _own_vertices(graph: Graph, order: Order) -> tuple[OrderStep, ...]:
    own = fingerprint(graph)
    if order.fingerprint != own:
        raise OrderError(
            f"The order was found for the program {order.fingerprint[:12]}…, but this function, at "
            f"these shapes and argnums, is {own[:12]}…. Call `find_order` with this function and "
            "arguments, or pass `order.vertices` if you know that the equations are the same.",
            code="order_of_another_program",
        )
    return order.vertices

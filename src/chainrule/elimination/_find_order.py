"""Finding an order for a function: the graph as a search problem, and the answer as an `Order`.

`find_order` searches for as long as the user says. `choose_order` turns what a user says about the order
(`order="auto"`, a name, vertices, an `Order`) into steps; its searches are short and the same everywhere.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from chainrule._errors import InputError
from chainrule._jaxpr import Var
from chainrule._lru_cache import LRUCache
from chainrule._progress import progress_bar
from chainrule.elimination._blocks import product_structure, sum_structure
from chainrule.elimination._counting import (
    KeptEdge,
    additions,
    count_operations,
    kept_edges,
    kept_multiplications,
    kept_product,
    kept_sum,
    nontrivial,
)
from chainrule.elimination._eliminate import Step
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._linearize import as_examples, trace_function
from chainrule.elimination._orders import (
    Order,
    OrderError,
    check_order,
    fingerprint,
    forward_order,
    markowitz_order,
    reverse_order,
)
from chainrule.elimination._search import (
    ZERO,
    Found,
    PartialGraph,
    Problem,
    quick_search,
    search,
    split_edges,
)
from chainrule.elimination._structure import Structure, structure_of
from chainrule.elimination._work import Work, prices, product_work, sum_work

Objective = Literal["multiplications", "nontrivial", "operations", "time", "memory"]


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
    _check_search(budget_s, seed)
    graph = trace_function(fun, argnums, as_examples(example_args), {}).graph
    return find_order_of_graph(
        graph, objective=objective, budget_s=budget_s, seed=seed, progress=progress, edges=edges
    )


def _check_search(budget_s: Any, seed: Any) -> None:
    if not isinstance(budget_s, numbers.Real) or not float(budget_s) >= 0:
        raise InputError(
            f"budget_s is a number of seconds, 0 or more; found {budget_s!r}.", code="bad_budget"
        )
    if not isinstance(seed, numbers.Integral):
        raise InputError(f"seed is an integer; found {seed!r}.", code="bad_seed")


def find_order_of_graph(
    graph: Graph,
    *,
    objective: Objective = "multiplications",
    budget_s: float = 1.0,
    seed: int = 0,
    progress: bool = False,
    edges: bool = False,
) -> Order:
    """`find_order` for a graph."""
    if objective not in _PRICINGS:
        raise InputError(
            f"There is no objective {objective!r}; it is one of {', '.join(map(repr, _PRICINGS))}.",
            code="unknown_objective",
        )
    problem, nodes = as_problem(graph, objective)
    limit = budget_s if math.isfinite(budget_s) else None
    with progress_bar("searching", limit, show=progress) as advance:

        def report(best: Found, elapsed: float) -> None:
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


def quick_order(graph: Graph) -> tuple[int, ...]:
    """An order with few nontrivial multiplications, soon, and the same one in every process."""
    problem, nodes = as_problem(graph, "nontrivial")
    found = quick_search(problem, reverse_first=is_wide(graph))
    return vertices_of(graph, [nodes[k] for k in found])


def is_wide(graph: Graph) -> bool:
    """Whether there are no more outputs than inputs: then reverse accumulation is the safer start."""
    return graph.rows <= graph.columns


def _with_edges(
    graph: Graph,
    order: Order,
    problem: Problem,
    nodes: Sequence[Var],
    found: Found,
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
) -> tuple[Step, ...]:
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


def _cost(graph: Graph, vertices: Sequence[Step], objective: str, counted: int) -> int:
    """Recounted by the counter, where it knows the objective: it does not share code with the search."""
    if objective not in ("multiplications", "nontrivial"):
        return counted
    return getattr(count_operations(graph, vertices), objective)


def vertices_of(graph: Graph, nodes: Sequence[Var]) -> tuple[int, ...]:
    """Vertex numbers in the order of their first node; most vertices have just one."""
    owner = {node: vertex for vertex in graph.required for node in graph.nodes(vertex)}
    return tuple(dict.fromkeys(owner[node] for node in nodes))


@dataclass(frozen=True)
class _Pricing:
    """What an objective looks at: edges of a kind, how they are multiplied and added, and at what cost."""

    edges: Callable[[Graph], Edges]
    product: Callable[[Any, Any], Any]
    total: Callable[[Any, Any], Any]
    product_cost: Callable[[Any, Any], int]
    sum_cost: Callable[[Any, Any], int]
    rounded: Callable[[Any], Any]
    terms: Callable[[Any], int]


class _Algebra:
    """Edges by number, with the cost of an objective."""

    def __init__(self, pricing: _Pricing) -> None:
        self._numbers: dict[Any, int] = {}
        self._edges: list[Any] = []
        self._pricing = pricing

    def number(self, edge: Any) -> int:
        if edge.is_zero:
            return ZERO
        edge = self._pricing.rounded(edge)
        if edge not in self._numbers:
            self._numbers[edge] = len(self._edges)
            self._edges.append(edge)
        return self._numbers[edge]

    def terms(self, edge: int) -> int:
        return self._pricing.terms(self._edges[edge])

    def product(self, out_edge: int, in_edge: int) -> tuple[int, int]:
        outer, inner = self._edges[out_edge], self._edges[in_edge]
        number = self.number(self._pricing.product(outer, inner))
        return number, self._pricing.product_cost(outer, inner)

    def sum(self, first: int, second: int) -> tuple[int, int]:
        one, other = self._edges[first], self._edges[second]
        total = self._pricing.total(one, other)
        # A sum that cancels keeps its edge: the search may not drop what it has once seen.
        kept = one if total.is_zero else total
        return self.number(kept), self._pricing.sum_cost(one, other)


@lru_cache(maxsize=65536)
def _rounded(structure: Structure) -> Structure:
    """Coefficients as "±1" or "another constant": their values make many structures, and no difference."""
    terms = [
        term.with_coefficient(1.0 if term.valued or abs(term.coefficient) == 1 else 2.0)
        for term in structure.terms
    ]
    return structure_of(terms, index_map=structure.index_map)


@lru_cache(maxsize=65536)
def _rounded_kept(edge: KeptEdge) -> KeptEdge:
    return KeptEdge(*(part and _rounded(part) for part in (edge.core, edge.pending)))


def _terms(structure: Structure | None) -> int:
    return 1 if structure is None else max(1, len(structure.terms))


def _kept_terms(edge: KeptEdge) -> int:
    return _terms(edge.core) * _terms(edge.pending)


def _entries_written(outer: Structure, inner: Structure) -> int:
    return product_structure(outer, inner).stored


def _nothing(first: Any, second: Any) -> int:
    return 0


def _additions(first: Structure, second: Structure) -> int:
    return additions(sum_structure(first, second))


def _picoseconds(work: Work) -> int:
    return round(1e12 * prices().seconds(work))


def _product_time(outer: Structure, inner: Structure) -> int:
    return _picoseconds(product_work(outer, inner))


def _sum_time(first: Structure, second: Structure) -> int:
    return _picoseconds(sum_work(first, second))


def _of_structures(product_cost: Any, sum_cost: Any = _nothing) -> _Pricing:
    return _Pricing(
        lambda graph: graph.structures, product_structure, sum_structure, product_cost, sum_cost, _rounded,
        _terms,
    )  # fmt: skip


_PRICINGS: dict[str, _Pricing] = {
    "multiplications": _Pricing(
        kept_edges,
        kept_product,
        kept_sum,
        kept_multiplications,
        _nothing,
        _rounded_kept,
        _kept_terms,
    ),
    "nontrivial": _of_structures(nontrivial),
    "operations": _of_structures(nontrivial, _additions),
    "time": _of_structures(_product_time, _sum_time),
    "memory": _of_structures(_entries_written),
}


def as_problem(graph: Graph, objective: Objective) -> tuple[Problem, list[Var]]:
    """The graph in numbers, and the variable of every number."""
    pricing = _PRICINGS[objective]
    algebra = _Algebra(pricing)
    numbers: dict[Var, int] = {}
    edges = []
    for result, row in pricing.edges(graph).items():
        for operand, edge in row.items():
            source = numbers.setdefault(operand, len(numbers))
            target = numbers.setdefault(result, len(numbers))
            if not edge.is_zero:  # as that of `x - x`
                edges.append((source, target, algebra.number(edge)))
    eliminable = [
        numbers[node] for v in graph.required for node in graph.nodes(v) if node in numbers
    ]
    structures = [s for row in graph.structures.values() for s in row.values()]
    is_scalar = objective == "multiplications" and all(
        not s.out_shape and not s.in_shape and not s.index_map for s in structures
    )
    problem = Problem(
        size=len(numbers), edges=tuple(edges), eliminable=tuple(eliminable),
        kept=frozenset(numbers[n] for n in graph.outputs if n in numbers and numbers[n] in set(eliminable)),
        algebra=algebra, is_scalar=is_scalar,
    )  # fmt: skip
    return problem, list(numbers)


OrderLike = str | Sequence[Step] | Order
"""`"auto"`, `"forward"`, `"reverse"`, `"markowitz"`, vertex numbers (pairs of them for edges), an `Order`."""

_MOST_SEARCHED = 2000
"""Larger graphs are not searched."""

_searches: LRUCache[tuple[str, tuple[int, ...]], tuple[Step, ...]] = LRUCache(512)
"""By program and required vertices: which edges there are can depend on constants, such as indices."""


def _searched(graph: Graph) -> tuple[Step, ...]:
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


_NAMED: dict[str, Callable[[Graph], tuple[Step, ...]]] = {
    "auto": _searched,
    "forward": forward_order,
    "fwd": forward_order,
    "reverse": reverse_order,
    "rev": reverse_order,
    "markowitz": markowitz_order,
}


def choose_order(graph: Graph, order: OrderLike) -> tuple[Step, ...]:
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


def _own_vertices(graph: Graph, order: Order) -> tuple[Step, ...]:
    own = fingerprint(graph)
    if order.fingerprint != own:
        raise OrderError(
            f"The order was found for the program {order.fingerprint[:12]}…, but this function, at "
            f"these shapes and argnums, is {own[:12]}…. Call `find_order` with this function and "
            "arguments, or pass `order.vertices` if you know that the equations are the same.",
            code="order_of_another_program",
        )
    return order.vertices

"""What a search for an order makes small, and a graph as a search problem with such an objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from chainrule._jaxpr import Var
from chainrule.elimination._blocks import product_structure, sum_structure
from chainrule.elimination._counting import (
    KeptEdge,
    additions,
    kept_edges,
    kept_multiplications,
    kept_product,
    kept_sum,
    nontrivial,
)
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._search import ZERO, Problem, quick_search
from chainrule.elimination._structure import Structure, structure_of
from chainrule.elimination._work import Work, prices, product_work, sum_work

Objective = Literal["multiplications", "nontrivial", "operations", "time", "memory"]


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


class _NumberedEdges:
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


OBJECTIVES: dict[str, _Pricing] = {
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
    pricing = OBJECTIVES[objective]
    algebra = _NumberedEdges(pricing)
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


def quick_order(graph: Graph) -> tuple[int, ...]:
    """An order with few nontrivial multiplications, soon, and the same one in every process."""
    problem, nodes = as_problem(graph, "nontrivial")
    found = quick_search(problem, reverse_first=is_wide(graph))
    return vertices_of(graph, [nodes[k] for k in found])


def is_wide(graph: Graph) -> bool:
    """Whether there are no more outputs than inputs: then reverse accumulation is the safer start."""
    return graph.rows <= graph.columns


def vertices_of(graph: Graph, nodes: Sequence[Var]) -> tuple[int, ...]:
    """Vertex numbers in the order of their first node; most vertices have just one."""
    owner = {node: vertex for vertex in graph.required for node in graph.nodes(vertex)}
    return tuple(dict.fromkeys(owner[node] for node in nodes))

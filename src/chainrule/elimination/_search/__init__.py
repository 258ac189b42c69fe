"""Searching for a cheap elimination order, on the bare graph.

This package does not use JAX: a `Problem` is vertices, edges with a structure number each, and an
`CostAlgebra` that says which structure a product or a sum of two structures has and what it costs.

    _problem          what is searched over, and a lower bound for its cost
    _partial_graph    the graph while vertices are eliminated; interpreted, or compiled by numba
    _improve          making orders: greedy, annealing, exact windows, branch and bound, single edges
    _portfolio        `search`, for as long as the user says; `quick_search`, short and always the same
"""

from chainrule.elimination._search._improve import split_edges
from chainrule.elimination._search._partial_graph import PartialGraph
from chainrule.elimination._search._portfolio import FoundOrder, quick_search, search
from chainrule.elimination._search._problem import (
    ZERO,
    CostAlgebra,
    OrderStep,
    Problem,
    ScalarAlgebra,
    lower_bound,
)

__all__ = [
    "ZERO",
    "CostAlgebra",
    "FoundOrder",
    "OrderStep",
    "PartialGraph",
    "Problem",
    "ScalarAlgebra",
    "lower_bound",
    "quick_search",
    "search",
    "split_edges",
]

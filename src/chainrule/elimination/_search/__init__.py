"""Searching for a cheap elimination order, on the bare graph.

This package knows nothing of JAX: a `Problem` is vertices, edges with a structure number each, and an
`Algebra` that says which structure a product or a sum of two structures has and what it costs. Two
engines evaluate orders on it, one in C (built on first use where a compiler is found) and one in Python;
`search` runs the portfolio: forward, reverse, greedy rules, a beam, annealing sweeps, exact windows; branch
and bound where there are few vertices. `quick_search` is what a call of `jacobian` can afford.

The fact the search stands on: the graph that is left after eliminating a *set* of vertices does not
depend on the order in which they went. So a change inside a window of an order changes the costs inside
that window only.
"""

from chainrule.elimination._search._bound import lower_bound
from chainrule.elimination._search._edges import split_edges
from chainrule.elimination._search._portfolio import Found, search
from chainrule.elimination._search._problem import Algebra, Problem, ScalarAlgebra
from chainrule.elimination._search._quick import quick_search

__all__ = [
    "Algebra",
    "Found",
    "Problem",
    "ScalarAlgebra",
    "lower_bound",
    "quick_search",
    "search",
    "split_edges",
]

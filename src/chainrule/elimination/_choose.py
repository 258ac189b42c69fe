"""From what a user says about the order to the order itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chainrule._lru_cache import LRUCache
from chainrule.elimination._eliminate import Step
from chainrule.elimination._find_order import is_wide, quick_order
from chainrule.elimination._graph import Graph
from chainrule.elimination._order import Order, fingerprint
from chainrule.elimination._orders import (
    OrderError,
    check_order,
    forward_order,
    markowitz_order,
    reverse_order,
)

OrderLike = str | Sequence[Step] | Order
"""`"auto"`, `"forward"`, `"reverse"`, `"markowitz"`, vertex numbers (pairs of them for edges), an `Order`."""

_MOST_VERTICES = 2000
"""Larger graphs are not searched."""

_searches: LRUCache[str, tuple[Step, ...]] = LRUCache(512)


def _searched(graph: Graph) -> tuple[Step, ...]:
    """An order with few nontrivial multiplications: the same one in every process."""
    if not _is_worth_a_search(graph):
        return _narrow_side_first(graph)
    name = fingerprint(graph)
    known = _searches.get(name)
    if known is None:
        known = quick_order(graph)
        _searches.put(name, known)
    return known


def _is_worth_a_search(graph: Graph) -> bool:
    return 2 <= len(graph.required) <= _MOST_VERTICES


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

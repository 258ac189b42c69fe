"""From what a user says about the order to the order itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chainrule.elimination._counting import count_operations
from chainrule.elimination._graph import Graph
from chainrule.elimination._orders import (
    OrderError,
    check_order,
    forward_order,
    markowitz_order,
    reverse_order,
)

__all__ = ["OrderLike", "choose_order"]

OrderLike = str | Sequence[int]
"""`"auto"`, `"forward"`, `"reverse"`, `"markowitz"`, or vertex numbers."""


def _cheapest(graph: Graph) -> tuple[int, ...]:
    candidates = [reverse_order(graph), forward_order(graph), markowitz_order(graph)]
    return min(candidates, key=lambda order: count_operations(graph, order).multiplications)


_NAMED: dict[str, Callable[[Graph], tuple[int, ...]]] = {
    "auto": _cheapest,
    "forward": forward_order,
    "fwd": forward_order,
    "reverse": reverse_order,
    "rev": reverse_order,
    "markowitz": markowitz_order,
}


def choose_order(graph: Graph, order: OrderLike) -> tuple[int, ...]:
    """The vertices in the order in which to eliminate them.

    Raises:
        OrderError: an unknown name, or a sequence that does not fit the graph.
    """
    if not isinstance(order, str):
        return check_order(graph, order)
    if order not in _NAMED:
        raise OrderError(
            f"There is no order called {order!r}. Named orders are {', '.join(map(repr, _NAMED))}; "
            "otherwise pass vertex numbers.",
            code="unknown_order",
        )
    return _NAMED[order](graph)

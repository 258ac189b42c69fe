"""The one walk over received data: dicts and lists become trees with arrays, within a budget.

Errors get the path of the node they concern while they travel up, so that the way down costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainrule._errors import ChainruleError
from chainrule._trees import Key, join_path
from chainrule.runtime._codec._limits import Budget

__all__ = ["NOT_SPECIAL", "raise_items", "raise_tree"]

NOT_SPECIAL = object()
"""Answer of a hook that leaves an object as it is."""

_CONTAINERS = frozenset((dict, list))


def raise_tree(
    node: Any, special: Callable[[dict[str, Any], int], Any], budget: Budget, depth: int = 0
) -> Any:
    """Replace, in place, every object that stands for something else.

    Args:
        node: freshly parsed JSON; it is modified.
        special: called with every object and its depth; returns what it stands for, or `NOT_SPECIAL`.
        budget: bounds on depth and number of fields; lists of plain numbers are not counted.
        depth: nesting of `node`.

    Raises:
        ChainruleError: whatever `special` or the budget raises, with its path into the data.
    """
    if type(node) is dict:
        found = special(node, depth)
        return _raise_mapping(node, special, budget, depth) if found is NOT_SPECIAL else found
    return _raise_list(node, special, budget, depth) if type(node) is list else node


def _raise_mapping(node: dict[str, Any], special: Any, budget: Budget, depth: int) -> Any:
    budget.enter(len(node), depth)
    return raise_items(node, special, budget, depth)


def _raise_list(node: list[Any], special: Any, budget: Budget, depth: int) -> Any:
    kinds = set(map(type, node))
    if kinds.isdisjoint(_CONTAINERS):
        return node
    budget.enter(len(node) if dict in kinds else 0, depth)
    return raise_items(node, special, budget, depth)


def raise_items(node: Any, special: Any, budget: Budget, depth: int) -> Any:
    """`raise_tree` for the items of a mapping or list that was accounted for already."""
    items = node.items() if type(node) is dict else enumerate(node)
    key: Any = None
    below = depth + 1
    try:
        for key, value in items:
            kind = type(value)
            if kind is dict:
                found = special(value, below)
                if found is NOT_SPECIAL:
                    _raise_mapping(value, special, budget, below)
                else:
                    node[key] = found
            elif kind is list:
                _raise_list(value, special, budget, below)
    except ChainruleError as error:
        error.path = _prepend(key, error.path)
        raise
    return node


def _prepend(key: Any, path: str | None) -> str:
    segment = key if isinstance(key, int) or key.isidentifier() else Key(key)
    return join_path(segment) + (f".{path}" if path else "")

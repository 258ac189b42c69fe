"""The one walk over received data: dicts and lists become trees with arrays, within a budget.

Errors get the path of the node they concern while they travel up, so that the way down costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from chainrule._codec._limits import Budget
from chainrule._codec._tables import MANY
from chainrule._errors import ChainruleError
from chainrule._paths import Key, join_path

NOT_SPECIAL = object()
"""Answer of a reader that leaves an object as it is."""

_CONTAINERS = frozenset((dict, list))


class Reader(Protocol):
    """What a format makes of objects that stand for something else."""

    def special(self, node: dict[str, Any], depth: int) -> Any:
        """What an object stands for, or `NOT_SPECIAL`."""

    def together(self, nodes: list[Any]) -> list[Any] | None:
        """What `MANY` or more nodes stand for; `None` when they have to be taken one by one."""


def raise_tree(node: Any, reader: Reader, budget: Budget, depth: int = 0) -> Any:
    """Replace, in place, every object that stands for something else.

    Args:
        node: freshly parsed JSON; it is modified.
        reader: says what objects stand for.
        budget: bounds on depth and number of fields; lists of plain numbers are not counted.
        depth: nesting of `node`.

    Raises:
        ChainruleError: whatever the reader or the budget raises, with its path into the data.
    """
    if type(node) is dict:
        found = reader.special(node, depth)
        if found is not NOT_SPECIAL:
            return found
        budget.enter(len(node), depth)
        return raise_mapping_items(node, reader, budget, depth)
    return _raise_list(node, reader, budget, depth) if type(node) is list else node


def raise_mapping_items(
    node: dict[str, Any], reader: Reader, budget: Budget, depth: int
) -> dict[str, Any]:
    """`raise_tree` for the items of a mapping that was accounted for already."""
    together = reader.together(list(node.values())) if len(node) >= MANY else None
    if together is None:
        _raise_items(node, node.items(), reader, budget, depth + 1)
    else:
        node.update(zip(tuple(node), together, strict=True))
    return node


def _raise_list(node: list[Any], reader: Reader, budget: Budget, depth: int) -> Any:
    kinds = set(map(type, node))
    if kinds.isdisjoint(_CONTAINERS):
        return node
    budget.enter(len(node) if dict in kinds else 0, depth)
    together = reader.together(node) if len(node) >= MANY else None
    if together is None:
        _raise_items(node, enumerate(node), reader, budget, depth + 1)
    else:
        node[:] = together
    return node


def _raise_items(
    node: Any, items: Iterable[tuple[Any, Any]], reader: Reader, budget: Budget, depth: int
) -> None:
    key: Any = None
    special = reader.special
    try:
        for key, value in items:
            kind = type(value)
            if kind is dict:
                found = special(value, depth)
                if found is NOT_SPECIAL:
                    budget.enter(len(value), depth)
                    raise_mapping_items(value, reader, budget, depth)
                else:
                    node[key] = found
            elif kind is list:
                _raise_list(value, reader, budget, depth)
    except ChainruleError as error:
        error.path = _prepend(key, error.path)
        raise


def _prepend(key: Any, path: str | None) -> str:
    segment = key if isinstance(key, int) or key.isidentifier() else Key(key)
    return join_path(segment) + (f".{path}" if path else "")

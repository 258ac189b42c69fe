"""Nested data with holes: take leaves out by their paths and put others in.

This is not `chainrule._partition`, which takes JAX's trees apart. What a component takes and returns is
nested data in the sense of `chainrule._trees`: models and any mapping are containers, keys keep their
order, `None` is a leaf, and a schema speaks of leaves by their paths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chainrule._paths import join_path, split_path
from chainrule._trees import get_at_path, iterate_leaves, open_model, static_key

Build = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The shape of a tree whose array leaves were taken out.

    Attributes:
        paths: of the holes, in order.
        statics: the leaves that stayed, by path.
        outline: the containers, as a hashable value; trees that differ in it differ in shape.
        build: a new tree of dicts, lists and tuples from values for the holes.
    """

    paths: tuple[str, ...]
    statics: tuple[tuple[str, Any], ...]
    outline: Hashable
    build: Build

    def signature(self, *facts: Any) -> Hashable | None:
        """A key for everything but the values in the holes, and further facts; `None` if not hashable."""
        statics = tuple((path, static_key(leaf)) for path, leaf in self.statics)
        key = (
            self.outline,
            self.paths,
            statics,
            *(tuple(f) if isinstance(f, list) else f for f in facts),
        )
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def extract(self, tree: Any) -> list[Any]:
        """The values at the holes of another tree of this shape."""
        return [_follow(tree, path) for path in self.paths]


def take_apart(tree: Any, is_hole: Callable[[str, Any], bool]) -> tuple[Skeleton, list[Any]]:
    """Split a tree into its skeleton and the leaves for which `is_hole(path, leaf)` holds."""
    plan: list[int | None] = []  # for each leaf, in order: the number of its hole
    paths: list[str] = []
    values: list[Any] = []
    statics: list[tuple[str, Any]] = []
    for segments, leaf in iterate_leaves(tree):
        path = join_path(*segments)
        if is_hole(path, leaf):
            plan.append(len(paths))
            paths.append(path)
            values.append(leaf)
        else:
            plan.append(None)
            statics.append((path, leaf))
    build = _builder(tree, iter(plan))
    return Skeleton(tuple(paths), tuple(statics), _outline(tree), build), values


def _outline(node: Any) -> Hashable:
    """Empty containers have no leaves, so the paths alone do not tell `{}` from `{"a": []}`."""
    node = open_model(node)
    if isinstance(node, Mapping):
        return ("mapping", *((key, _outline(child)) for key, child in node.items()))
    if isinstance(node, (list, tuple)):
        return (type(node), *(_outline(child) for child in node))
    return None


def _builder(node: Any, plan: Any) -> Build:
    """Visits leaves in the order of `iterate_leaves`; `plan` says what each of them is."""
    node = open_model(node)
    if isinstance(node, Mapping):
        parts = {key: _builder(child, plan) for key, child in node.items()}
        return lambda values: {key: part(values) for key, part in parts.items()}
    if isinstance(node, (list, tuple)):
        items = [_builder(child, plan) for child in node]
        make = node._make if hasattr(node, "_make") else type(node)
        return lambda values: make([item(values) for item in items])
    number = next(plan)
    if number is None:
        return lambda values: node
    return lambda values: values[number]


def _follow(tree: Any, path: str) -> Any:
    node = tree
    try:
        for segment in _segments(path):
            node = node[segment]
    except (LookupError, TypeError):  # a model, a NamedTuple or a key that is not a string
        return get_at_path(tree, path)
    return node


_segments = lru_cache(maxsize=4096)(split_path)

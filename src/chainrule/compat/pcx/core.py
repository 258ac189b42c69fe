"""Parameters, modules, random keys, and helpers for trees of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from chainrule import stateful
from chainrule.stateful import (
    RKG,
    BaseParam,
    DynamicParam,
    Module,
    Param,
    ParamCache,
    ParamDict,
    RandomKeyGenerator,
    get,
    static,
    tree_ref,
    tree_unref,
)

__all__ = [
    "RKG",
    "BaseModule",
    "BaseParam",
    "DynamicParam",
    "Module",
    "Param",
    "ParamCache",
    "ParamDict",
    "RandomKeyGenerator",
    "get",
    "set",
    "static",
    "tree_apply",
    "tree_extract",
    "tree_inject",
    "tree_ref",
    "tree_unref",
]

BaseModule = Module
set = stateful.set_  # the ancestor's name, inside this package


def tree_apply(
    fn: Callable[[Any], Any],
    filter_fn: Callable[[Any], bool],
    tree: Any,
    recursive: bool = True,
) -> None:
    """Call a function on every node of a tree that a predicate accepts.

    Args:
        fn: the function; its result is not used.
        filter_fn: the predicate.
        tree: modules, parameters and containers. A node that is shared is visited once per occurrence.
        recursive: also look inside the nodes that were accepted.
    """
    accepted = jax.tree.leaves(tree, is_leaf=filter_fn)
    for node in filter(filter_fn, accepted):
        fn(node)
        if recursive:
            for child in _children(node):
                tree_apply(fn, filter_fn, child, recursive)


def _children(node: Any) -> list[Any]:
    leaves, treedef = jax.tree.flatten(node, is_leaf=lambda other: other is not node)
    return [] if jax.tree_util.treedef_is_leaf(treedef) else leaves


def tree_extract(
    pydag: Any,
    *rest: Any,
    extract_fn: Callable[[Any], Any] | None = None,
    filter_fn: Callable[[Any], bool] | None = None,
    is_pytree: bool = False,
) -> tuple[Any, ...]:
    """The parameters of a tree, each once, in order.

    Args:
        pydag: modules, parameters and containers.
        *rest: trees of the same structure; then every entry is a tuple with one parameter of each.
        extract_fn: what to take of each entry instead of the entry itself.
        filter_fn: which parameters; by default all.
        is_pytree: accepted; sharing is always seen.
    """
    columns = [stateful.tree_extract(tree, filter_fn) for tree in (pydag, *rest)]
    entries: Sequence[Any] = list(zip(*columns, strict=True)) if rest else columns[0]
    return tuple(entries if extract_fn is None else map(extract_fn, entries))


def tree_inject(
    pydag: Any,
    *,
    params: Any = None,
    values: Sequence[Any] | None = None,
    filter_fn: Callable[[Any], bool] | None = None,
    is_pytree: bool = False,
    strict: bool = True,
) -> Any:
    """Set the parameters that `tree_extract` gives, in its order, and return the tree.

    Args:
        pydag: modules, parameters and containers.
        params: a tree whose parameters' values are taken, or
        values: as many values.
        filter_fn: which parameters; by default all.
        is_pytree: accepted; sharing is always seen.
        strict: refuse surplus values; too few are always refused, before anything is set.
    """
    new = list(stateful.tree_extract(params, filter_fn) if values is None else values)
    if not strict:
        new = new[: len(stateful.tree_extract(pydag, filter_fn))]
    return stateful.tree_inject(pydag, new, filter_fn)

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


def set(obj: Any, x: Any) -> Any:
    """Set a parameter and return it; return the value where `obj` is none."""
    return stateful.set_(obj, x)


def static(x: Any) -> Any:
    """A parameter whose value is part of the program, not of the data."""
    return stateful.static(x)


def tree_ref(pydag: Any) -> Any:
    """The tree with every further occurrence of a parameter replaced by a reference to its first one."""
    return stateful.tree_ref(pydag)


def tree_unref(pytree: Any) -> Any:
    """The inverse of `tree_ref`."""
    return stateful.tree_unref(pytree)


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
    extract_fn: Callable[..., Any] = lambda x: x,
    filter_fn: Callable[[Any], bool] = lambda x: isinstance(x, DynamicParam),
    is_pytree: bool = False,
) -> tuple[Any, ...]:
    """The parameters of a tree, each once, in order.

    Args:
        pydag: modules, parameters and containers.
        *rest: trees of the same structure.
        extract_fn: what to take: a function of a parameter and of its counterparts in the other trees.
        filter_fn: which parameters; by default all that change.
        is_pytree: accepted; sharing is always seen.
    """
    columns = [stateful.tree_extract(tree, filter_fn) for tree in (pydag, *rest)]
    return tuple(extract_fn(*entry) for entry in zip(*columns, strict=True))


def tree_inject(
    pydag: Any,
    *,
    params: Any = None,
    values: Sequence[Any] | None = None,
    inject_fn: Callable[[Any, Any], Any] = lambda n, v: n.set(v),
    filter_fn: Callable[[Any], bool] = lambda x: isinstance(x, DynamicParam),
    is_pytree: bool = False,
    strict: bool = True,
) -> Any:
    """Set the parameters that `tree_extract` gives, in its order, and return the tree.

    Args:
        pydag: modules, parameters and containers.
        params: a tree whose parameters' values are taken, or
        values: as many parameters or plain values.
        inject_fn: what to do with a parameter and its new value.
        filter_fn: which parameters; by default all that change.
        is_pytree: accepted; sharing is always seen.
        strict: refuse surplus values; too few are always refused, before anything is set.

    Raises:
        ValueError: there are not as many values as parameters.
    """
    new = list(stateful.tree_extract(params, filter_fn) if values is None else values)
    held = stateful.tree_extract(pydag, filter_fn)
    if len(new) < len(held) or (strict and len(new) > len(held)):
        raise ValueError(f"Expected {len(held)} values, one for each parameter; found {len(new)}.")
    for param, value in zip(held, new, strict=False):
        inject_fn(param, get(value))
    return pydag

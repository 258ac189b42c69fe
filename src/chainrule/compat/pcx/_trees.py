"""Trees like a model, with something else in the places of its parameters: masks and gradients.

In the ancestor, what a mask makes of a model and what `value_and_grad` returns are such trees. Natively
gradients come by path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax

from chainrule import stateful
from chainrule.compat.pcx.core import Module
from chainrule.stateful import BaseParam, DynamicParam
from chainrule.stateful.internal import params_of


def replaced(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """A tree with `replace(leaf)` for each leaf, where parameters, static ones included, are leaves.

    Modules stay modules, with every attribute visible to `jax.tree`; containers become plain ones.
    """
    if isinstance(tree, Module):
        return type(tree).of_leaves([(n, replaced(part, replace)) for n, part in tree.parts()])
    if isinstance(tree, stateful.Module):
        return type(tree).from_pairs([(n, replaced(part, replace)) for n, part in tree.pairs()])
    if isinstance(tree, dict):
        return {key: replaced(item, replace) for key, item in tree.items()}
    if isinstance(tree, list):
        return [replaced(item, replace) for item in tree]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(replaced(item, replace) for item in tree)
    if _is_leaf(tree):
        return replace(tree)
    return jax.tree.map(lambda part: replaced(part, replace), tree, is_leaf=lambda x: x is not tree)


def _is_leaf(tree: Any) -> bool:
    return isinstance(tree, BaseParam) or jax.tree_util.all_leaves([tree])


def each_once(replace: Callable[[Any], Any], again: Any) -> Callable[[Any], Any]:
    """`replace`, with `again` for a parameter that it has been given before."""
    seen: set[int] = set()

    def first(leaf: Any) -> Any:
        if isinstance(leaf, DynamicParam):
            if id(leaf) in seen:
                return again
            seen.add(id(leaf))
        return replace(leaf)

    return first


def gradient_tree(tree: Any, gradients: Any) -> Any:
    """A tree whose parameters hold gradients; `None` where there is none.

    Args:
        tree: what was differentiated.
        gradients: `{path: gradient}`; for a bare parameter its gradient; `None` for no gradient at all.
    """
    params = params_of(tree)
    by_path = {"": gradients} if "" in params else gradients or {}
    found: Mapping[int, Any] = {id(params[path]): g for path, g in by_path.items()}

    def replace(leaf: Any) -> Any:
        gradient = found.get(id(leaf))
        return None if gradient is None else copy.copy(leaf).set(gradient)

    return replaced(tree, each_once(replace, None))


def by_path(tree: Any) -> dict[str, Any]:
    """The inverse: `{path: value}` of every parameter in a tree that holds something."""
    return {path: param.get() for path, param in params_of(tree).items() if param.get() is not None}

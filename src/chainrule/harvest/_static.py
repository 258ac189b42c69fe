"""Pytree leaves that are no arrays, on their way through `jax.jit`.

A function may take a string or an Equinox module with a function in it, and may return such things.
`protect` wraps them into pytree nodes without leaves, which `jit` treats as part of the structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from chainrule.harvest._slots import is_array


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    value: Any


def has_static_leaves(tree: Any) -> bool:
    """Whether some leaf is no array."""
    return not all(map(is_array, jax.tree.leaves(tree)))


def protect(tree: Any) -> Any:
    """The tree with every leaf that is no array hidden in the structure."""
    return jax.tree.map(lambda leaf: leaf if is_array(leaf) else _Static(leaf), tree)


def unprotect(tree: Any) -> Any:
    """Undo `protect`."""
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, _Static) else leaf,
        tree,
        is_leaf=lambda node: isinstance(node, _Static),
    )

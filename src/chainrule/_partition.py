"""Trees taken apart into arrays, which flow through a compiled program, and the rest, which is compiled in.

    template, arrays = partition(tree)      template.join(arrays) is the tree again
    seal(tree), unseal(tree)                the same for what a compiled function returns

Trees are JAX's: containers and registered classes. What is compiled depends on the *template*: the
structure of the tree and every leaf that is not an array (strings, functions, Python numbers). A template
is hashable and compares by value, so that one program serves all trees with the same template.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from chainrule._trees import static_key


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a numeric array, concrete or traced; bfloat16 (kind "V") is, text is not."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind in "fiubc" or (
            leaf.dtype.kind == "V" and leaf.dtype.type is not np.void
        )
    return isinstance(leaf, jax.Array)


def is_array_or_number(leaf: Any) -> bool:
    """Whether JAX can carry a leaf: arrays, and Python's numbers."""
    return is_array(leaf) or isinstance(leaf, (bool, int, float, complex))


@jax.tree_util.register_static
class Static:
    """A value that is part of the structure of a tree: hashable, equal by type and value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = static_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


class Template(NamedTuple):
    """A tree without its arrays.

    Attributes:
        structure: the tree.
        statics: one entry per leaf; `None` where an array belongs.
    """

    structure: Any
    statics: tuple[Static | None, ...]

    def join(self, arrays: Sequence[Any]) -> Any:
        """The tree with arrays put back in."""
        remaining = iter(arrays)
        leaves = [next(remaining) if s is None else s.value for s in self.statics]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def arrays_of(self, leaves: Sequence[Any]) -> list[Any]:
        """Those of some leaves, one per leaf of the tree, that stand where arrays belong."""
        return [leaf for leaf, s in zip(leaves, self.statics, strict=True) if s is None]


def partition(
    tree: Any, is_array: Callable[[Any], bool] = is_array
) -> tuple[Template, tuple[Any, ...]]:
    """A tree as its template and its arrays.

    Args:
        tree: any pytree.
        is_array: which leaves are arrays.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    arrays: list[Any] = []
    statics: list[Static | None] = []
    for leaf in leaves:
        if is_array(leaf):
            arrays.append(leaf)
            statics.append(None)
        else:
            statics.append(Static(leaf))
    return Template(structure, tuple(statics)), tuple(arrays)


def seal(tree: Any, is_array: Callable[[Any], bool] = is_array) -> Any:
    """A tree that a compiled function can take or return: leaves that are not arrays become structure."""
    return jax.tree_util.tree_map(lambda leaf: leaf if is_array(leaf) else Static(leaf), tree)


def unseal(tree: Any) -> Any:
    """Undo `seal`."""
    return jax.tree_util.tree_map(
        lambda leaf: leaf.value if isinstance(leaf, Static) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Static),
    )

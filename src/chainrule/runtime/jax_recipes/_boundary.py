"""The border between an endpoint's inputs and a compiled function.

What is compiled depends on the *frame* of the inputs: their structure and every leaf that is not an array
(strings, Python numbers, `None`). Arrays are what flows. A frame is hashable and compares by value, so JAX
compiles once per frame, shapes and dtypes, like `equinox.filter_jit`, at the price of a plain `jit` call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

__all__ = ["Frame", "Selection", "Static", "is_array", "seal", "split", "unseal"]


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a numeric array, concrete or traced (arrays of text are not)."""
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        return True
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind not in "OSUMmV"


@jax.tree_util.register_pytree_node_class
class Static:
    """A value that takes part in compilation instead of flowing: hashable, equal by type and value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = _static_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Static({self.value!r})"

    def tree_flatten(self) -> tuple[tuple[()], Static]:
        """No children: the whole value is structure."""
        return (), self

    @classmethod
    def tree_unflatten(cls, static: Static, _: Any) -> Static:
        """The inverse of `tree_flatten`."""
        return static


def _static_key(value: Any) -> Any:
    # The type is part of the key because 1 == 1.0 == True, and each compiles to something else.
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, value.shape, repr(value.tolist())
    try:
        hash(value)
    except TypeError:
        return type(value), repr(value)
    return type(value), value


@dataclass(frozen=True)
class Frame:
    """Inputs without their arrays.

    Attributes:
        structure: the tree.
        statics: one entry per leaf; `None` where an array belongs.
    """

    structure: Any
    statics: tuple[Static | None, ...]

    def join(self, arrays: tuple[Any, ...]) -> Any:
        """The tree with arrays put back in."""
        remaining = iter(arrays)
        leaves = [next(remaining) if s is None else s.value for s in self.statics]
        return jax.tree_util.tree_unflatten(self.structure, leaves)


@dataclass(frozen=True)
class Selection:
    """What a derivative is taken of: everything that decides what is compiled, array shapes aside."""

    # Hashing an Equinox wrapper walks its leaves at every call; comparing it with itself is free.
    apply_jit: Callable[[Any], Any] = field(hash=False)
    frame: Frame
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def split(inputs: Any) -> tuple[Frame, tuple[Any, ...]]:
    """Inputs (a model or nested data) as a frame and its arrays."""
    tree = inputs.model_dump() if hasattr(inputs, "model_dump") else inputs
    leaves, structure = jax.tree_util.tree_flatten(tree)
    statics = tuple(None if is_array(leaf) else Static(leaf) for leaf in leaves)
    return Frame(structure, statics), tuple(leaf for leaf in leaves if is_array(leaf))


def seal(tree: Any) -> Any:
    """A tree that a compiled function can return: leaves that are not arrays become structure."""
    return jax.tree_util.tree_map(lambda leaf: leaf if is_array(leaf) else Static(leaf), tree)


def unseal(tree: Any) -> Any:
    """Undo `seal`."""
    return jax.tree_util.tree_map(
        lambda leaf: leaf.value if isinstance(leaf, Static) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Static),
    )

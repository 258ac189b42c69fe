"""What everything inside a model has in common, and what may be put into one.

A model is made of *nodes*: parameters, modules, and the containers a module holds. Anything else that is
assigned to a module is structure: numbers, names, functions, a component's handle. Arrays have to be boxed,
because a bare array would be neither: it could not be tracked, and comparing it is not structure's job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from chainrule._errors import DefinitionError
from chainrule.stateful._snapshots import Snapshot, pack, unpack
from chainrule.stateful._values import describe

Pairs = list[tuple[Any, Any]]
_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None), type(len), type(lambda: 0)))


class Node:
    """A parameter, a module, or a container that belongs to one.

    Attributes:
        _birth: serial number of the frame it was made in (see `_frames`).
        _watches: weak references to the watches over its structure.
        _trace: the JAX trace it was made in.
    """

    __slots__ = ()

    _birth: int
    _watches: tuple[Any, ...]
    _trace: Any


class Branch(Node):
    """A node with parts: a module, or a container that belongs to one.

    As a pytree its children are the parts with arrays. The order of the parts, and those without arrays, are
    structure.
    """

    __slots__ = ()

    def pairs(self) -> Pairs:
        """Keys and parts in their order."""
        raise NotImplementedError

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Any:
        """A branch with these parts, which are taken as they are; `__init__` is not called."""
        raise NotImplementedError

    @staticmethod
    def _key_entry(key: Any) -> Any:
        """A key as JAX names it in paths."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (type(self), [(key, pack(part)) for key, part in self.pairs()])

    def _flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        pairs = self.pairs()
        dynamic, static = _split(pairs)
        children = [(self._key_entry(key), part) for key, part in dynamic]
        order = tuple(key for key, _ in pairs)
        return children, (order, tuple(key for key, _ in dynamic), Snapshot(static))

    @classmethod
    def _unflatten(cls, aux: Any, children: Iterable[Any]) -> Any:
        order, keys, static = aux
        parts = dict([*zip(keys, children, strict=True), *static.value])
        return cls.from_pairs([(key, parts[key]) for key in order])


def _rebuild(cls: type[Branch], pairs: Pairs) -> Any:
    return cls.from_pairs([(key, unpack(part)) for key, part in pairs])


def _split(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Separate parts with leaves from those that are structure."""
    dynamic: Pairs = []
    static: Pairs = []
    for key, part in pairs:
        (dynamic if has_leaves(part) else static).append((key, part))
    return dynamic, static


def is_node(x: Any) -> bool:
    """Whether a tree walk should stop here and treat `x` by its identity."""
    return isinstance(x, Node)


def has_identity(x: Any) -> bool:
    """Whether a node is known by its identity: all but tuples, which are nothing beside their items."""
    return isinstance(x, Node) and not isinstance(x, tuple)


def has_leaves(value: Any) -> bool:
    """Whether a part of a module carries arrays (as opposed to being structure)."""
    if isinstance(value, Node):
        return True
    if type(value) in _ATOMS:
        return False
    leaves = jax.tree.leaves(value, is_leaf=is_node)
    return any(isinstance(leaf, (Node, jax.Array, np.ndarray)) for leaf in leaves)


def check_structure(value: Any, where: str) -> None:
    """Refuse arrays that nothing boxes.

    Raises:
        DefinitionError: `value` is an array, or a pytree that holds one outside of parameters.
    """
    if type(value) in _ATOMS:
        return
    for leaf in jax.tree.leaves(value, is_leaf=is_node):
        if isinstance(leaf, (jax.Array, np.ndarray)):
            raise DefinitionError(
                f"`{where}` is set to an array {describe(leaf)} that no parameter holds. Write "
                "`Param(array)` to track and train it, `Param(array, frozen=True)` for a buffer, or "
                "`static(array)` for a constant that is part of the structure.",
                code="bare_array",
                path=where,
            )

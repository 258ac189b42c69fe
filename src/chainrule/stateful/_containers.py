"""Containers that belong to a model: lists, dictionaries and tuples that know when they change.

A module turns the plain containers assigned to it into these. They are the same to use, refuse to be
edited inside a transformed function, tell jitted functions when they are edited outside, and are pytree nodes
whose items without arrays (activation functions, names) are structure, not leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
from jax.tree_util import DictKey, SequenceKey, register_pytree_with_keys

from chainrule._jaxpr import current_trace
from chainrule.stateful._frames import birth, guard_edit, restructured
from chainrule.stateful._nodes import Node, Pairs, check_structure, has_leaves, split
from chainrule.stateful._snapshots import Snapshot, pack, unpack


def adopt(value: Any, where: str) -> Any:
    """What a module stores when `value` is assigned to it.

    Plain containers become ones that know when they change, an equinox module with arrays becomes a
    `Layer` (its arrays become parameters), a bare array is refused, everything else stays as it is.
    """
    if isinstance(value, Node):
        return value
    container = _CONTAINERS.get(type(value))
    if container is not None:
        return container(value)
    if isinstance(value, eqx.Module) and has_leaves(value):
        from chainrule.stateful.layers._layer import Layer

        return Layer(value)
    check_structure(value, where)
    return value


def rebuild(cls: Any, pairs: Pairs) -> Any:
    """What a copy or a pickle of a module or container is made by."""
    return cls.from_pairs([(key, unpack(value)) for key, value in pairs])


class Container(Node):
    """What the three containers share: the flattening."""

    __slots__ = ()

    def pairs(self) -> Pairs:
        """Keys and items in their order, which is part of the structure."""
        raise NotImplementedError

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Any:
        """The container with these items, which are taken as they are."""
        raise NotImplementedError

    @staticmethod
    def _key_entry(key: Any) -> Any:
        return SequenceKey(key)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return rebuild, (type(self), [(key, pack(item)) for key, item in self.pairs()])

    def _flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        pairs = self.pairs()
        dynamic, static = split(pairs)
        children = [(self._key_entry(key), value) for key, value in dynamic]
        order = tuple(key for key, _ in pairs)
        return children, (order, tuple(key for key, _ in dynamic), Snapshot(static))

    @classmethod
    def _unflatten(cls, aux: Any, children: Iterable[Any]) -> Any:
        order, keys, static = aux
        items = dict([*zip(keys, children, strict=True), *static.value])
        return cls.from_pairs([(key, items[key]) for key in order])


class List(Container, list):
    """A list inside a module."""

    __slots__ = ("__weakref__", "_birth", "_trace", "_watches")

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._birth = birth()
        self._watches = ()
        self._trace = current_trace()
        list.__init__(self, items)
        self._adopt_items()

    def _adopt_items(self) -> None:
        for index, item in enumerate(self):
            list.__setitem__(self, index, adopt(item, f"[{index}]"))

    def pairs(self) -> Pairs:
        return list(enumerate(self))

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> List:
        self = cls()
        list.extend(self, (item for _, item in pairs))
        return self


class Dict(Container, dict):
    """A dictionary inside a module. The order of its keys is kept: a model may loop over them."""

    __slots__ = ("__weakref__", "_birth", "_trace", "_watches")

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        self._birth = birth()
        self._watches = ()
        self._trace = current_trace()
        dict.__init__(self, items)
        self._adopt_items()

    def _adopt_items(self) -> None:
        for key, item in self.items():
            dict.__setitem__(self, key, adopt(item, f"{{{key}}}"))

    def pairs(self) -> Pairs:
        return list(self.items())

    @staticmethod
    def _key_entry(key: Any) -> Any:
        return DictKey(key)

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Dict:
        self = cls()
        dict.update(self, pairs)
        return self


class Tuple(Container, tuple):
    """A tuple inside a module. It never changes, so it needs no marks of its own."""

    __slots__ = ()
    _birth = 0
    _watches = ()

    def __new__(cls, items: Iterable[Any] = ()) -> Tuple:
        return tuple.__new__(cls, [adopt(item, f"[{i}]") for i, item in enumerate(items)])

    def pairs(self) -> Pairs:
        return list(enumerate(self))

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Tuple:
        return tuple.__new__(cls, [item for _, item in pairs])


_CONTAINERS: dict[type, Any] = {list: List, dict: Dict, tuple: Tuple}
_EDITS = {
    List: ("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse",
           "__setitem__", "__delitem__", "__iadd__", "__imul__"),
    Dict: ("update", "setdefault", "pop", "popitem", "clear",
           "__setitem__", "__delitem__", "__ior__"),
}  # fmt: skip


def _holds(container: Any, key: Any, value: Any) -> bool:
    try:
        return container[key] is value
    except LookupError:
        return False


def _guarded(edit: Any, name: str) -> Any:
    """A built-in's editing method that checks first, and adopts what was added."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "__setitem__" and _holds(self, *args):
            return None  # `layers[0] += 1` assigns the parameter it changed
        guard_edit(self, f"A {type(self).__name__.lower()} of a module was edited ({name})", args)
        result = edit(self, *args, **kwargs)
        self._adopt_items()
        restructured(self)
        return result

    method.__name__ = name
    return method


for _builtin, _cls in _CONTAINERS.items():
    for _name in _EDITS.get(_cls, ()):
        setattr(_cls, _name, _guarded(getattr(_builtin, _name), _name))
    register_pytree_with_keys(_cls, _cls._flatten_with_keys, _cls._unflatten)

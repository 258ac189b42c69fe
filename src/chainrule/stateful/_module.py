"""Modules, ordinary mutable objects that are pytrees of their attributes; and the containers inside them.

Assign parameters, other modules, containers of those, and anything that is structure (numbers, names,
functions). Attributes are visited in alphabetical order, so the order of assignment never matters.

A module turns the plain lists, dictionaries and tuples assigned to it into its own. They are the same to use,
refuse to be edited inside a transformed function, tell jitted functions when they are edited outside, and are
pytree nodes whose items without arrays (activation functions, names) are structure, not leaves.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, register_pytree_with_keys

from chainrule._jaxpr import current_trace
from chainrule.stateful._frames import birth, guard_edit, restructured
from chainrule.stateful._nodes import Branch, Node, Pairs, check_structure, has_leaves, is_node
from chainrule.stateful._params import StaticParam

M = TypeVar("M", bound="Module")


class Mode(enum.IntEnum):
    """Whether a module is being trained or evaluated."""

    NONE = 0
    TRAIN = 1
    EVAL = 2


class Module(Branch):
    """A mutable object whose attributes form a pytree.

    Inside a function transformed by `chainrule.stateful`, a module passed by keyword is the caller's own
    object: its parameters can be set, its attributes cannot be added, replaced or removed. Passed by
    position, and in plain `jax.*` transformations, it is a copy.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Module, Param, jit
        >>> class Counter(Module):
        ...     def __init__(self):
        ...         self.count = Param(jnp.zeros((), int))
        >>> @jit
        ... def tick(*, counter):
        ...     counter.count += 1
        >>> counter = Counter()
        >>> tick(counter=counter); tick(counter=counter)
        >>> int(counter.count)
        2
    """

    __slots__ = ("__dict__", "__weakref__", "_birth", "_trace", "_watches")

    _mode: StaticParam

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = cls._blank()
        self.__dict__["_mode"] = StaticParam(Mode.NONE)
        return self

    @classmethod
    def _blank(cls: type[M]) -> M:
        self = object.__new__(cls)
        object.__setattr__(self, "_birth", birth())
        object.__setattr__(self, "_watches", ())
        object.__setattr__(self, "_trace", current_trace())
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_pytree_with_keys(cls, cls._flatten_with_keys, cls._unflatten)

    def pairs(self) -> Pairs:
        """Names and values of the attributes, in alphabetical order."""
        return sorted(self.__dict__.items())

    @classmethod
    def from_pairs(cls: type[M], pairs: Pairs) -> M:
        """A module with these attributes, which are taken as they are; `__init__` is not called."""
        self = cls._blank()
        self.__dict__.update(pairs)
        return self

    @staticmethod
    def _key_entry(key: Any) -> Any:
        return GetAttrKey(key)

    def __setattr__(self, name: str, value: Any) -> None:
        # Refused inside a transformed function: what a trace changes here happens once, and not again when
        # the compiled program runs.
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        if name in self.__dict__ and self.__dict__[name] is value:
            return  # `module.param += 1` assigns the parameter it changed
        where = f"{type(self).__name__}.{name}"
        guard_edit(self, f"Attribute `{where}` was set", value)
        self.__dict__[name] = adopt(value, where)
        restructured(self)

    def __delattr__(self, name: str) -> None:
        guard_edit(self, f"Attribute `{type(self).__name__}.{name}` was removed")
        object.__delattr__(self, name)
        restructured(self)

    def submodules(self, cls: type | tuple[type, ...] | None = None) -> Iterator[Module]:
        """The nearest modules inside this one, each once; with `cls`, the nearest of that class.

        A module that matches is not searched further; one that does not is.
        """
        kinds: Any = Module if cls is None else cls
        seen: set[int] = set()

        def search(tree: Any) -> Iterator[Module]:
            for node in jax.tree.leaves(tree, is_leaf=is_node):
                if id(node) in seen or not isinstance(node, Branch):
                    continue
                seen.add(id(node))
                if isinstance(node, kinds):
                    yield node
                else:
                    yield from search([value for _, value in node.pairs()])

        yield from search([value for _, value in self.pairs()])

    def mode(self, value: Mode | None = None) -> Mode:
        """The mode of this module; with a value, first set it here and in every module inside.

        Flags named `inference` (dropout, batch norm, equinox layers) follow: on in `EVAL`, off in `TRAIN`.
        """
        if value is not None:
            self._mode.set(Mode(value))
            flag = self.__dict__.get("inference")
            if isinstance(flag, StaticParam) and value != Mode.NONE:
                flag.set(value == Mode.EVAL)
            for module in self.submodules():
                module.mode(value)
        return self._mode.get()

    def train(self: M) -> M:
        """Switch to training and return the module."""
        self.mode(Mode.TRAIN)
        return self

    def eval(self: M) -> M:
        """Switch to evaluation and return the module."""
        self.mode(Mode.EVAL)
        return self

    @property
    def is_train(self) -> bool:
        """Whether the module is in training mode."""
        return self._mode.get() == Mode.TRAIN

    @property
    def is_eval(self) -> bool:
        """Whether the module is in evaluation mode."""
        return self._mode.get() == Mode.EVAL

    def __repr__(self) -> str:
        from chainrule.stateful._summary import render

        return render(self)

    def _repr_html_(self) -> str:
        from chainrule.stateful._summary import render_html

        return render_html(self)


register_pytree_with_keys(Module, Module._flatten_with_keys, Module._unflatten)


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


class List(Branch, list):
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

    @staticmethod
    def _key_entry(key: Any) -> Any:
        return SequenceKey(key)

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> List:
        self = cls()
        list.extend(self, (item for _, item in pairs))
        return self


class Dict(Branch, dict):
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


class Tuple(Branch, tuple):
    """A tuple inside a module. It never changes, so it needs no marks of its own."""

    __slots__ = ()
    _birth = 0
    _watches = ()

    def __new__(cls, items: Iterable[Any] = ()) -> Tuple:
        return tuple.__new__(cls, [adopt(item, f"[{i}]") for i, item in enumerate(items)])

    def pairs(self) -> Pairs:
        return list(enumerate(self))

    @staticmethod
    def _key_entry(key: Any) -> Any:
        return SequenceKey(key)

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

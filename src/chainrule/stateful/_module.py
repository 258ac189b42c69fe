"""Modules: ordinary mutable objects that are pytrees of their attributes.

Assign parameters, other modules, containers of those, and anything that is structure (numbers, names,
functions). Attributes are visited in alphabetical order, so the order of assignment never matters.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from chainrule._jaxpr import current_trace
from chainrule.stateful._containers import adopt, rebuild
from chainrule.stateful._frames import birth, guard_edit, restructured
from chainrule.stateful._nodes import Node, Pairs, is_node, split
from chainrule.stateful._params import StaticParam
from chainrule.stateful._snapshots import Snapshot, pack

M = TypeVar("M", bound="Module")


class Mode(enum.IntEnum):
    """Whether a module is being trained or evaluated."""

    NONE = 0
    TRAIN = 1
    EVAL = 2


class Module(Node):
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

    def _flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        dynamic, static = split(self.pairs())
        children = [(GetAttrKey(name), value) for name, value in dynamic]
        return children, (tuple(name for name, _ in dynamic), Snapshot(static))

    @classmethod
    def _unflatten(cls: type[M], aux: Any, children: Iterable[Any]) -> M:
        names, static = aux
        return cls.from_pairs([*zip(names, children, strict=True), *static.value])

    def __setattr__(self, name: str, value: Any) -> None:
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        return rebuild, (type(self), [(name, pack(value)) for name, value in self.pairs()])

    def submodules(self, cls: type | tuple[type, ...] | None = None) -> Iterator[Module]:
        """The nearest modules inside this one, each once; with `cls`, the nearest of that class.

        A module that matches is not searched further; one that does not is.
        """
        kinds: Any = Module if cls is None else cls
        seen: set[int] = set()

        def search(tree: Any) -> Iterator[Module]:
            for node in jax.tree.leaves(tree, is_leaf=is_node):
                if id(node) in seen or not hasattr(node, "pairs"):
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

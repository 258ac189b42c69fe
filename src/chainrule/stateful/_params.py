"""Parameters: boxes around values that transformations track.

    BaseParam            anything with `get` and `set`
    ├── DynamicParam     holds arrays; tracked by transformations
    │   ├── Param        one value: an array, None, or a pytree of arrays. Subclass it to make a *kind*
    │   ├── ParamDict    a dictionary of values; empty until something is stored
    │   └── RKGState     the state of a random generator (`_random`)
    └── StaticParam      a value that is not an array: part of the structure, compared by equality
    ParamCache           marker for kinds whose content can be thrown away

Every class is a pytree node: the value is its child (a static one has none), the attributes set on it are
metadata, and both kinds of transformation understand it, ours (which keep its identity) and plain `jax.*`
(which make copies).

Parameters are used like what they hold: every operator works on the value, in-place operators write it
(`Operators`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from chainrule._errors import DefinitionError
from chainrule._jaxpr import current_trace
from chainrule.stateful._frames import (
    birth,
    guard_edit,
    local,
    read,
    read_static,
    restructured,
    write,
    write_static,
)
from chainrule.stateful._nodes import Node
from chainrule.stateful._snapshots import Snapshot
from chainrule.stateful._values import check_value, describe, strong

_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul",
    "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "pos", "abs", "invert")


def unwrap(x: Any) -> Any:
    """The value of a `Param`; anything else as it is."""
    return x.get() if isinstance(x, Operators) else x


class Operators:
    """Mix-in that forwards operators to `self.get()`; in-place forms end in `self.set(...)`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # `==` is elementwise, as for arrays

    def get(self) -> Any:
        """The value."""
        raise NotImplementedError

    def set(self, value: Any) -> Any:
        """Replace the value."""
        raise NotImplementedError

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.get(), unwrap(other))

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(unwrap(other), self.get())

    def __getitem__(self, index: Any) -> Any:
        return self.get()[unwrap(index)]

    def __len__(self) -> int:
        return len(self.get())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __contains__(self, item: Any) -> bool:
        return unwrap(item) in self.get()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __index__(self) -> int:
        return operator.index(self.get())

    def __round__(self, digits: int | None = None) -> Any:
        return round(jnp.asarray(self.get()), digits)  # without digits integers, as for an array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.get(), dtype=dtype)

    def __jax_array__(self) -> Any:
        return jnp.asarray(self.get())

    def __bool__(self) -> bool:
        raise TypeError(
            f"The truth of a {type(self).__name__} is ambiguous: did you mean its value, "
            "`bool(param.get())`, or whether it is set, `param.get() is not None`?"
        )


def _forward(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators, other: Any) -> Any:
        return function(self.get(), unwrap(other))

    return method


def _reflected(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators, other: Any) -> Any:
        return function(unwrap(other), self.get())

    return method


def _in_place(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators, other: Any) -> Any:
        return self.set(function(self.get(), unwrap(other)))

    return method


def _unary(name: str) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators) -> Any:
        return function(self.get())

    return method


def _install() -> None:
    makers = (("", _BINARY + _COMPARISONS, _forward), ("r", _BINARY, _reflected),
              ("i", _BINARY, _in_place), ("", _UNARY, _unary))  # fmt: skip
    for prefix, names, make in makers:
        for name in names:
            dunder = f"__{prefix}{name}__"
            method = make(name)
            method.__name__ = dunder
            setattr(Operators, dunder, method)


_install()


T = TypeVar("T")
_VALUE_KEY = GetAttrKey("value")
_NO_METADATA = Snapshot({})


class Cell:
    """The storage of one parameter.

    A class of its own because `jit` reads and writes every parameter on every call, and Python makes
    attribute access fast only for classes without `__getattr__` and `__setattr__`.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None


class BaseParam(Node):
    """Anything that holds one value and can be shared by reference.

    Attributes set on a parameter are metadata: part of the structure (changing one makes jitted
    functions compile again), kept by copies, visible to masks.
    """

    __slots__ = ("__dict__", "__weakref__", "_birth", "_cell", "_trace", "_watches")

    _cell: Cell

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = object.__new__(cls)
        set_slot = object.__setattr__
        set_slot(self, "_birth", birth())
        set_slot(self, "_watches", ())
        set_slot(self, "_trace", current_trace())
        set_slot(self, "_cell", Cell())
        return self

    @property
    def _value(self) -> Any:
        """The parameter's own storage, without regard to frames."""
        return self._cell.value

    @_value.setter
    def _value(self, value: Any) -> None:
        self._cell.value = value

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._register()

    @classmethod
    def _register(cls) -> None:
        register_pytree_with_keys(
            cls, cls._flatten_with_keys, cls._unflatten, flatten_func=cls._flatten
        )

    def _flatten(self) -> tuple[tuple[Any, ...], Any]:
        raise NotImplementedError

    def _flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], Any]:
        children, aux = self._flatten()
        return tuple((_VALUE_KEY, child) for child in children), aux

    @classmethod
    def _unflatten(cls, aux: Any, children: Any) -> BaseParam:
        raise NotImplementedError

    @classmethod
    def _restore(cls, value: Any, metadata: dict[str, Any]) -> BaseParam:
        """A parameter with this value and metadata; subclasses' `__init__` is not called."""
        self = cls.__new__(cls)
        self._cell.value = value
        self.__dict__.update(metadata)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self)._restore, (self.get(), dict(self.__dict__))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("value", "_value"):
            object.__setattr__(self, name, value)
            return
        guard_edit(self, f"Metadata `{name}` of a {type(self).__name__} was set", value)
        object.__setattr__(self, name, value)
        restructured(self)

    def __delattr__(self, name: str) -> None:
        guard_edit(self, f"Metadata `{name}` of a {type(self).__name__} was removed")
        object.__delattr__(self, name)
        restructured(self)

    @property
    def metadata(self) -> Snapshot:
        """The attributes set on this parameter, comparable and hashable."""
        return Snapshot(dict(sorted(self.__dict__.items()))) if self.__dict__ else _NO_METADATA

    def get(self) -> Any:
        """The value."""
        raise NotImplementedError

    def set(self, value: Any) -> Any:
        """Replace the value and return the parameter."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise TypeError(
            f"The truth of a {type(self).__name__} is ambiguous; test its value, `param.get()`."
        )

    def _metadata_text(self) -> str:
        return "".join(f", {name}={value!r}" for name, value in self.__dict__.items())


class DynamicParam(BaseParam):
    """A parameter that holds arrays and is tracked by transformations.

    Args:
        value: the initial value.
        **metadata: attributes to set, for example `frozen=True`.
    """

    __slots__ = ()

    keeps_type: ClassVar[bool] = True
    """Whether setting another shape, dtype or structure inside a transformation is an error. Setting a
    parameter that is `None`, and setting it to `None`, is always allowed outside of loops and branches."""

    frozen: bool = False
    """A frozen parameter is left out of every default selection: no gradient, no optimiser."""

    def __init__(self, value: Any = None, **metadata: Any) -> None:
        self._value = checked(value)
        self.__dict__.update(metadata)

    def _flatten(self) -> tuple[tuple[Any, ...], Any]:
        return (self._whole(),), self.metadata

    @classmethod
    def _unflatten(cls, aux: Snapshot, children: Any) -> BaseParam:
        return cls._restore(children[0], aux.value)

    def _whole(self) -> Any:
        """The value; `get` of a subclass may answer with a part of it."""
        stack = local.stack
        return read(self, stack) if stack else self._value

    def get(self) -> Any:
        return self._whole()

    def set(self, value: Any) -> Any:
        """Replace the value (a parameter is unwrapped) and return this parameter.

        Raises:
            TrackingError: inside a transformed function that does not track this parameter, or when
                shape, dtype or structure would change there.
        """
        write(self, checked(value))
        return self

    @property
    def value(self) -> Any:
        """The value; assigning to it is `set`."""
        return self._whole()

    @value.setter
    def value(self, value: Any) -> None:
        self.set(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe(self.value)}{self._metadata_text()})"


def checked(value: Any) -> Any:
    """A value as a parameter stores it: unwrapped, with dtypes of its own.

    Raises:
        DefinitionError: no transformation could carry it.
    """
    value = unwrap(value)
    if isinstance(value, jax.Array):
        return strong(value)
    check_value(value)
    return jax.tree.map(strong, value)


class Param(DynamicParam, Operators):
    """A box around an array, `None`, or a pytree of arrays, whose changes transformations track.

    It behaves like its value in arithmetic, in `jax.numpy` functions and for attributes (`shape`, `at`, …);
    `set`, `.value = …` and in-place operators change it. Subclasses are *kinds* that masks select by.

    Example:
        >>> import jax.numpy as jnp
        >>> class Weight(Param): ...
        >>> w = Weight(jnp.ones(3))
        >>> w *= 2.0
        >>> float(jnp.sum(w))
        6.0
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get()
        if value is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r} and no value yet"
            )
        return getattr(value, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.get()(*args, **kwargs)


class ParamDict(DynamicParam):
    """A dictionary of values, empty until something is stored; its structure may change under `jit`.

    Example:
        >>> cache = ParamDict()
        >>> "u" in cache, cache.get("u", 0.0)
        (False, 0.0)
        >>> cache["u"] = 1.0
        >>> float(cache["u"])
        1.0
    """

    __slots__ = ()
    keeps_type: ClassVar[bool] = False

    def get(self, key: str | None = None, default: Any = None) -> Any:
        """The whole dictionary (`None` when cleared); with a key, its value or the default."""
        return self._whole() if key is None else self._items().get(key, default)

    def _items(self) -> dict[str, Any]:
        return self.value or {}

    def __getitem__(self, key: str) -> Any:
        return self._items()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        # Copy on write: the dictionary may be the caller's.
        self.set({**self._items(), key: unwrap(value)})

    def __delitem__(self, key: str) -> None:
        items = dict(self._items())
        del items[key]
        self.set(items)

    def __contains__(self, key: Any) -> bool:
        return key in self._items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._items())

    def __len__(self) -> int:
        return len(self._items())

    def keys(self) -> Any:
        """The stored keys."""
        return self._items().keys()

    def items(self) -> Any:
        """The stored pairs."""
        return self._items().items()


class ParamCache:
    """Marker for kinds whose content can be thrown away: not trained, not saved."""

    __slots__ = ()


class StaticParam(BaseParam):
    """A value that is not an array: part of the structure, so jitted functions compile per value.

    It can be set inside a transformed function like any tracked parameter; in the body of a loop, or
    differently in two branches, that is an error, since no array carries the outcome.
    """

    __slots__ = ()

    def __init__(self, value: Any = None, **metadata: Any) -> None:
        self._value = _unchanging(value)
        self.__dict__.update(metadata)

    def _flatten(self) -> tuple[tuple[Any, ...], Any]:
        return (), Snapshot((self.get(), self.metadata))

    @classmethod
    def _unflatten(cls, aux: Snapshot, children: Any) -> StaticParam:
        value, metadata = aux.value
        return cls._restore(value, metadata.value)  # type: ignore[return-value]

    def get(self) -> Any:
        return read_static(self) if local.stack else self._value

    def set(self, value: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise DefinitionError(
                "A static parameter cannot hold a traced value; use a `Param`.", code="bad_value"
            )
        write_static(self, _unchanging(value.get() if isinstance(value, StaticParam) else value))
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.get(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.get()(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.get()[key]

    def __len__(self) -> int:
        return len(self.get())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __contains__(self, item: Any) -> bool:
        return item in self.get()

    def __eq__(self, other: object) -> Any:
        return self.get() == (other.get() if isinstance(other, StaticParam) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get()!r}{self._metadata_text()})"


def _unchanging(value: Any) -> Any:
    """A NumPy array as a copy that cannot be written: an edit in place would not be noticed."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.copy()
        value.flags.writeable = False
    return value


def static(value: T) -> Any:
    """Box a value as part of the structure; a static parameter is returned as it is."""
    return value if isinstance(value, StaticParam) else StaticParam(value)

"""Equality, hash and copies of what a model holds beside arrays: names, functions, options, plain objects.

`Snapshot` makes any object usable as auxiliary data of a pytree and as part of a cache key. Two snapshots are
equal when using one object for the other cannot be noticed: containers are compared item by item, arrays by
content, numbers by what they print (so `nan` equals itself and `-0.0` is not `0.0`), everything else by `==`
with identity first. `chainrule._partition.Static` is the simpler one, for the arguments of one call, which
are not edited while a key with them is in use.

An object may be edited in place after it became part of a key, and then no longer be what the key stood for.
So a snapshot keeps a copy of what can be edited:

    never edited    numbers, names, functions, classes, JAX arrays, and every object whose class defines a
                    hash by value (a frozen data class, an enum): Python asks of those not to change
    containers      snapshots of their items, deques included; of a partial, its function and arguments
    NumPy arrays    a copy, up to `_MAX_COPIED` bytes. Larger ones are compared by identity, because each call
                    would have to read them; those that are read-only are never edited
    other objects   the object, and snapshots of its public attributes (of all fields, for a data class)

A snapshot is taken and compared at each call of a jitted function; that takes some ten microseconds for an
array of `_MAX_COPIED` bytes.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import importlib
import types
from collections.abc import Mapping, Set
from typing import Any

import jax
import numpy as np

_UNCHANGING = (
    bool, int, float, complex, str, bytes, type(None), type, np.generic, jax.Array,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip


# docs/how-to/train.md names this limit.
_MAX_COPIED = 64 * 1024


class Snapshot:
    """A hashable, comparable box around one object, as the object is now.

    The hash is coarse where the object is unhashable: equality decides, the hash only has to agree
    with it.
    """

    __slots__ = ("snapshot", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.snapshot = take_snapshot(value)

    @property
    def is_editable(self) -> bool:
        """Whether the object can be edited in place."""
        return self.snapshot is not self.value

    @property
    def is_current(self) -> bool:
        """Whether the object still is what it was when it was boxed."""
        return same(self.snapshot, take_snapshot(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and same(self.snapshot, other.snapshot)

    def __hash__(self) -> int:
        return _coarse_hash(self.snapshot)

    def __reduce__(self) -> Any:
        return type(self), (self.value,)

    def __deepcopy__(self, memo: Any) -> Snapshot:
        return type(self)(copy.deepcopy(self.value, memo)) if self.is_editable else self

    def __repr__(self) -> str:
        return f"Snapshot({self.value!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class _Editable:
    """An object that can be edited, and its attributes at one moment."""

    origin: Any
    attributes: dict[str, Any]


def take_snapshot(value: Any) -> Any:
    """What stands for a value in comparisons; the value itself where it cannot be edited."""
    return _snapshot(value, ())


def _snapshot(value: Any, above: tuple[int, ...]) -> Any:
    """A value, or what it holds now where it can be edited in place.

    `above` are the identities of the objects around it: one that holds itself ends there. Objects that
    define their own hash are taken to be values; all others are looked into, attribute by attribute.
    """
    if isinstance(value, _UNCHANGING) or id(value) in above:
        return value
    if isinstance(value, functools.partial):
        return _snapshot_of_partial(value, (*above, id(value)))
    if is_function(value):
        return value
    if isinstance(value, np.ndarray):
        return _snapshot_of_array(value, (*above, id(value)))
    above = (*above, id(value))
    if isinstance(value, bytearray):
        return _Editable(bytearray, {"items": bytes(value)})
    if isinstance(value, collections.deque):
        items = [_snapshot(item, above) for item in value]
        return _Editable(type(value), {"items": items, "maxlen": value.maxlen})
    if isinstance(value, (list, tuple)):
        items = [_snapshot(item, above) for item in value]
        is_kept = isinstance(value, tuple) and all(map(_is_same_object, items, value))
        return value if is_kept else _Editable(type(value), {"items": items})
    if isinstance(value, Mapping):
        entries = {key: _snapshot(item, above) for key, item in value.items()}
        return _Editable(type(value), {"items": entries})
    if isinstance(value, Set):
        return (
            value if isinstance(value, frozenset) else _Editable(set, {"items": frozenset(value)})
        )
    if type(value).__hash__ not in (None, object.__hash__):
        return value
    attributes = {
        name: _snapshot(attribute, above) for name, attribute in _attributes(value).items()
    }
    return _Editable(value, attributes) if attributes else value


def _snapshot_of_partial(value: functools.partial[Any], above: tuple[int, ...]) -> Any:
    parts = [_snapshot(part, above) for part in (value.func, value.args)]
    if not value.keywords and all(map(_is_same_object, parts, (value.func, value.args))):
        return value
    return _Editable(type(value), {"items": parts, "keywords": _snapshot(value.keywords, above)})


def _snapshot_of_array(value: np.ndarray, above: tuple[int, ...]) -> Any:
    if not value.flags.writeable:
        return value
    if value.nbytes > _MAX_COPIED:
        # Not by content: once it is edited, its content is no longer what a key stands for. The number stays
        # its own as long as this holds the array.
        return _Editable(value, {"identity": id(value)})
    if value.dtype.hasobject:
        return _Editable(type(value), {"items": _snapshot(value.tolist(), above)})
    return value.copy()


def _is_same_object(a: Any, b: Any) -> bool:
    return a is b


def _attributes(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        slots = [getattr(cls, "__slots__", ()) for cls in type(value).__mro__]
        declared = [
            name for names in slots for name in ((names,) if isinstance(names, str) else names)
        ]
        names = [
            name
            for name in (*getattr(value, "__dict__", ()), *declared)
            if name[0] != "_" and not _is_cache(value, name)
        ]
    # By name: the order in which attributes were set is no part of what an object is.
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


def _is_cache(value: Any, name: str) -> bool:
    """Whether an attribute appears when it is first read, which is not an edit."""
    return isinstance(getattr(type(value), name, None), functools.cached_property)


def same(a: Any, b: Any) -> bool:
    """Whether one object can stand for the other."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex, np.inexact)):
        # 0.0 == -0.0, and they compile to different programs; NaN is not equal to itself.
        return repr(a) == repr(b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        # Keys in their order, which a loop over them shows, and of one type: 1 == True.
        return same([*a], [*b]) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (np.ndarray, jax.Array)):
        return _same_array(a, b)
    if isinstance(a, _Editable):
        return same(a.attributes, b.attributes) and same(a.origin, b.origin)
    if isinstance(a, functools.partial):
        return same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    try:
        return bool(a == b) or bool(a != a and b != b)
    except Exception:
        # An `==` that cannot answer with one truth value (elementwise, or raising) says "different".
        return False


def _same_array(a: Any, b: Any) -> bool:
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.hasobject:
        return same(a.tolist(), b.tolist())
    return a.tobytes() == b.tobytes()  # bit by bit: see the numbers in `same`


def _coarse_hash(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return hash((type(value), *map(_coarse_hash, value)))
    if isinstance(value, Mapping):
        return hash((type(value), len(value)))
    if isinstance(value, _Editable):
        return _coarse_hash(value.attributes.get("items", ()))
    if isinstance(value, functools.partial):
        return _coarse_hash(value.func)
    if isinstance(value, float) and value != value:
        return hash("nan")
    try:
        return hash(value)
    except TypeError:
        return hash(type(value))


def is_function(value: Any) -> bool:
    """Whether an object is a function, or made from one by `jax.jit`, `jax.custom_jvp` and the like."""
    is_plain = isinstance(value, (types.FunctionType, types.BuiltinFunctionType))
    return is_plain or "__wrapped__" in getattr(value, "__dict__", ())


class Portable:
    """A function on its way into a copy or a pickle.

    A deep copy shares functions, as Python's own does for those that are not wrapped: a copied `jax.nn.relu`
    would not equal the original, and a copied model would compile anew. A pickle holds the name of a function
    that can be imported: JAX's wrapped ones cannot be pickled by their content.
    """

    __slots__ = ("function",)

    def __init__(self, function: Any) -> None:
        self.function = function

    def __deepcopy__(self, memo: Any) -> Any:
        return self.function

    def __reduce__(self) -> Any:
        module, name = (getattr(self.function, k, None) for k in ("__module__", "__qualname__"))
        try:
            if _imported(module, name) is self.function:
                return _imported, (module, name)
        except (ImportError, AttributeError, TypeError):
            pass
        return _unchanged, (self.function,)


def pack(value: Any) -> Any:
    """What represents a value while a copy or pickle is made."""
    return Portable(value) if is_function(value) else value


def unpack(value: Any) -> Any:
    """Undo `pack` where nothing has copied or pickled the value: in a shallow copy."""
    return value.function if isinstance(value, Portable) else value


def _imported(module: Any, name: Any) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def _unchanged(value: Any) -> Any:
    return value

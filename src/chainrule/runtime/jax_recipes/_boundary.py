"""The border between an endpoint's inputs and a compiled function.

What is compiled depends on the *frame* of the inputs: their structure and every leaf that is not an array
(strings, Python numbers, `None`). Arrays are what flows. A frame is hashable and compares by value, so that
one program serves all inputs of a frame, as with `equinox.filter_jit`.
"""

from __future__ import annotations

import pickle
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from pydantic import BaseModel, RootModel

_NUMPY = (np.ndarray, np.generic)
_KINDS = frozenset("fiubc")


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a numeric array, concrete or traced; bfloat16 (kind "V") is, text is not."""
    if isinstance(leaf, _NUMPY):
        dtype = leaf.dtype
        return dtype.kind in _KINDS or (dtype.kind == "V" and dtype.type is not np.void)
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


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
    # The type is part of the key because 1 == 1.0 == True, and each compiles to something else. So does
    # -0.0, which equals 0.0; and NaN, which equals nothing, would compile anew each time.
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, value.shape, repr(value.tolist())
    try:
        hash(value)
    except TypeError:
        return type(value), _content_of(value)
    return type(value), value


def _content_of(value: Any) -> Any:
    """A key for what cannot be hashed; what tells nothing about its content is like nothing else."""
    try:
        return pickle.dumps(value)
    except Exception:
        return object()


class Frame(NamedTuple):
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


def split(inputs: Any) -> tuple[Frame, tuple[Any, ...]]:
    """Inputs (a model or nested data) as a frame and its arrays."""
    flat = flat_frame(inputs)
    if flat is not None:
        frame, order = flat
        side_by_side = arrays_in(inputs, order)
        if side_by_side is not None:
            return frame, side_by_side
    leaves, structure = jax.tree_util.tree_flatten(_tree(inputs))
    statics: list[Static | None] = []
    arrays: list[Any] = []
    for leaf in leaves:
        if is_array(leaf):
            statics.append(None)
            arrays.append(leaf)
        else:
            statics.append(Static(leaf))
    return Frame(structure, tuple(statics)), tuple(arrays)


def flat_frame(inputs: Any) -> tuple[Frame, list[Any]] | None:
    """The frame of inputs that are arrays side by side, as most are, and the order in which it takes them.

    `None` where that cannot be; `arrays_in` sees whether it is so.
    """
    kind = type(inputs)
    return _flat_frame(*inputs) if kind is dict else _flat_model(kind)  # type: ignore[arg-type]


def arrays_in(inputs: Any, names: list[Any]) -> tuple[Any, ...] | None:
    """The fields of these names, if there are no others and all are NumPy arrays of numbers."""
    # A model may lack fields (`model_construct`) and have cached properties beside them.
    fields = inputs if type(inputs) is dict else inputs.__dict__
    if len(fields) != len(names):
        return None
    arrays = []
    for name in names:
        array = fields.get(name)
        if type(array) is not np.ndarray or array.dtype.kind not in _KINDS:
            return None
        arrays.append(array)
    return tuple(arrays)


# Typed: `{1: …}` and `{True: …}` are not the same tree.
@lru_cache(maxsize=1024, typed=True)
def _flat_frame(*names: Any) -> tuple[Frame, list[Any]]:
    """The frame of a mapping to arrays, and the order in which it takes them."""
    order, structure = jax.tree_util.tree_flatten({name: name for name in names})
    return Frame(structure, (None,) * len(names)), order


@cache
def _flat_model(kind: type) -> tuple[Frame, list[Any]] | None:
    """`_flat_frame` of a model's fields; `None` for what is no model, or has to be dumped."""
    return _flat_frame(*kind.model_fields) if _has_plain_fields(kind) else None  # type: ignore[attr-defined]


_ATOMS = frozenset((np.ndarray, np.float32, np.float64, float, int, bool, str, type(None)))


def _tree(inputs: Any) -> Any:
    """Nested data from inputs; a model of plain values is read as it stands, without dumping it."""
    if not isinstance(inputs, BaseModel):
        return inputs
    fields, is_whole = inputs.__dict__, len(inputs.__dict__) == len(type(inputs).model_fields)
    if (
        is_whole
        and _has_plain_fields(type(inputs))
        and _ATOMS.issuperset(map(type, fields.values()))
    ):
        return fields
    return inputs.model_dump()


@cache
def _has_plain_fields(model: type) -> bool:
    """Whether this is a model, and dumping it changes nothing about values that need no dumping."""
    if not issubclass(model, BaseModel):
        return False
    decorators = model.__pydantic_decorators__
    if decorators.field_serializers or decorators.model_serializers or decorators.computed_fields:
        return False
    if issubclass(model, RootModel) or model.model_config.get("extra") == "allow":
        return False
    return not any(
        info.exclude or any("Serializer" in type(entry).__name__ for entry in info.metadata)
        for info in model.model_fields.values()
    )


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

"""Nested data before its arrays exist: with holes in their places, and with their shapes and dtypes.

A *skeleton* is what stays of a tree whose arrays are taken out by their paths. This is not
`chainrule._partition`, which takes JAX's trees apart. What a component takes and returns is nested data in
the sense of `chainrule._trees`: models and any mapping are containers, keys keep their order, `None` is a
leaf, and a schema speaks of leaves by their paths.

The rule for components that compute in 64 bits while JAX holds 32: what goes to the component is widened to
what its schema says, what comes back is narrowed to what JAX is configured to hold (with a
`PrecisionWarning`), and derivatives have the dtype of what they are derivatives of.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from chainrule._codec import dtype_from_name, dtype_generality
from chainrule._describe import describe_array
from chainrule._paths import join_path, split_path
from chainrule._trees import get_at_path, iterate_leaves, map_leaves, open_model, static_key

Build = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The shape of a tree whose array leaves were taken out.

    Attributes:
        paths: of the holes, in order.
        statics: the leaves that stayed, by path.
        outline: the containers, as a hashable value; trees that differ in it differ in shape.
        build: a new tree of dicts, lists and tuples from values for the holes.
    """

    paths: tuple[str, ...]
    statics: tuple[tuple[str, Any], ...]
    outline: Hashable
    build: Build

    def signature(self, *facts: Any) -> Hashable | None:
        """A key for everything but the values in the holes, and further facts; `None` if not hashable."""
        statics = tuple((path, static_key(leaf)) for path, leaf in self.statics)
        key = (self.outline, self.paths, statics, *facts)
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def extract(self, tree: Any) -> list[Any]:
        """The values at the holes of another tree of this shape."""
        return [_follow(tree, path) for path in self.paths]


def take_apart(tree: Any, is_hole: Callable[[str, Any], bool]) -> tuple[Skeleton, list[Any]]:
    """Split a tree into its skeleton and the leaves for which `is_hole(path, leaf)` holds."""
    plan: list[int | None] = []  # for each leaf, in order: the number of its hole
    paths: list[str] = []
    values: list[Any] = []
    statics: list[tuple[str, Any]] = []
    for segments, leaf in iterate_leaves(tree):
        path = join_path(*segments)
        if is_hole(path, leaf):
            plan.append(len(paths))
            paths.append(path)
            values.append(leaf)
        else:
            plan.append(None)
            statics.append((path, leaf))
    outline, build = _compiled(tree, iter(plan))
    return Skeleton(tuple(paths), tuple(statics), outline, build), values


def _compiled(node: Any, plan: Iterator[int | None]) -> tuple[Hashable, Build]:
    """The outline of a tree, and what builds it: the walk that is repeated for every call, made once.

    Visits leaves in the order of `iterate_leaves`; `plan` says what each of them is.
    """
    node = open_model(node)
    if isinstance(node, Mapping):
        parts = {key: _compiled(child, plan) for key, child in node.items()}
        builds = {key: build for key, (_, build) in parts.items()}
        # Empty containers have no leaves, so the paths alone do not tell `{}` from `{"a": []}`.
        outline: Hashable = ("mapping", *((key, inner) for key, (inner, _) in parts.items()))
        return outline, lambda values: {key: build(values) for key, build in builds.items()}
    if isinstance(node, (list, tuple)):
        items = [_compiled(child, plan) for child in node]
        make = node._make if hasattr(node, "_make") else type(node)
        outline = (type(node), *(inner for inner, _ in items))
        return outline, lambda values: make([build(values) for _, build in items])
    number = next(plan)
    return None, (lambda values: node) if number is None else itemgetter(number)


def _follow(tree: Any, path: str) -> Any:
    node = tree
    try:
        for segment in split_path(path):
            node = node[segment]
    except (LookupError, TypeError):  # a model, a NamedTuple or a key that is not a string
        return get_at_path(tree, path)
    return node


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype of an array; prints as `f64[3,4]`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return describe_array(self)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def with_leading(self, *sizes: int) -> ArrayType:
        """The type of a batch of such arrays."""
        return ArrayType((*sizes, *self.shape), self.dtype)


def as_array_type(leaf: Any) -> ArrayType | None:
    """The type that a leaf describes (an array, a shape-dtype object, `{"shape", "dtype"}`), or `None`."""
    if isinstance(leaf, ArrayType):
        return leaf
    if _is_written_type(leaf):
        dtype = leaf["dtype"]
        known = dtype_from_name(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        return ArrayType(tuple(leaf["shape"]), known)
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return ArrayType(tuple(leaf.shape), np.dtype(leaf.dtype))
    return None


def read_types(tree: Any) -> Any:
    """A tree in which `{"shape": …, "dtype": …}`, which a tree walk would take apart, became types."""

    def read(leaf: Any) -> Any:
        return as_array_type(leaf) if _is_written_type(leaf) else leaf

    return map_leaves(read, tree, is_leaf=_is_written_type)


def _is_written_type(node: Any) -> bool:
    return isinstance(node, Mapping) and set(node) == {"shape", "dtype"}


def types_of(outputs: Any) -> Any:
    """A tree with the type of every array in the place of the array."""
    skeleton, arrays = take_apart(outputs, lambda path, leaf: as_array_type(leaf) is not None)
    return skeleton.build([as_array_type(array) for array in arrays])


def dtype_to_send(found: np.dtype[Any], wanted: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype in which a target that wants some dtype gets an array of another.

    Where a cast could change numbers silently (2.7 as an integer, 2**40 in 32 bits), the array is sent as it
    is. The target checks it: the dtype before a program runs, the values when it does.
    """
    if wanted is None or dtype_generality(found) > dtype_generality(wanted):
        return found
    if dtype_generality(found) == dtype_generality(wanted) == 1 and not np.can_cast(found, wanted):
        return found
    return wanted


def has_symbolic_size(array: Any) -> bool:
    """Whether a size is a symbol of `jax.export`, which no schema can check."""
    return any(not isinstance(size, int) for size in array.shape)


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype can carry derivatives: real and complex numbers, bfloat16 and its like."""
    return dtype_generality(dtype) >= 2


class PrecisionWarning(UserWarning):
    """A component computes in a wider dtype than JAX is configured to hold."""


def warn_if_narrowed(name: str, dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Warn if JAX holds some of these arrays in a narrower dtype than the component declares."""
    import jax  # here: torch does without it

    held = {path: jax.dtypes.canonicalize_dtype(dtype) for path, dtype in dtypes.items()}
    narrowed = [
        f"`{path}` {dtypes[path]} as {held[path]}" for path in dtypes if dtypes[path] != held[path]
    ]
    if narrowed:
        warnings.warn(
            f"{name} declares 64 bits and JAX holds 32: {', '.join(narrowed)}. Call "
            '`jax.config.update("jax_enable_x64", True)` at the start of your program to keep all digits.',
            PrecisionWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The `stacklevel`, in the caller of this function, of the code that called this library or JAX."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_of_library(frame.f_globals):
        frame, level = frame.f_back, level + 1
    return level


def _is_of_library(names: Mapping[str, Any]) -> bool:
    return names.get("__name__", "").partition(".")[0] in ("chainrule", "jax")

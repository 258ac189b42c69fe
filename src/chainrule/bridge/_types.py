"""What the bridge knows about one array before it exists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.runtime.internal import (
    ArraySpec,
    check_shape,
    describe_array,
    dtype_mismatch,
    numpy_dtype,
)


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
    if isinstance(leaf, Mapping) and set(leaf) == {"shape", "dtype"}:
        dtype = leaf["dtype"]
        known = numpy_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        return ArrayType(tuple(leaf["shape"]), known)
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return ArrayType(tuple(leaf.shape), np.dtype(leaf.dtype))
    return None


def read_types(tree: Any) -> Any:
    """A tree in which `{"shape": …, "dtype": …}`, which a tree walk would take apart, became types."""
    if isinstance(tree, Mapping) and set(tree) == {"shape", "dtype"}:
        return as_array_type(tree)
    if isinstance(tree, Mapping):
        return {key: read_types(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        make = tree._make if hasattr(tree, "_make") else type(tree)
        return make([read_types(value) for value in tree])
    return tree


def fit_type(spec: ArraySpec, found: ArrayType) -> ArrayType:
    """The type that a declaration gives to an array of some type, by casting and broadcasting.

    Raises:
        PydanticCustomError: it does not fit.
    """
    shape = check_shape(spec, found.shape, found.dtype, strict=False)
    if spec.dtype is None:
        return ArrayType(shape, found.dtype)
    wanted = numpy_dtype(spec.dtype)
    if _generality(found.dtype) > _generality(wanted):
        raise dtype_mismatch(spec.dtype, found.dtype.name, found.shape)
    return ArrayType(shape, wanted)


def dtype_to_send(found: np.dtype[Any], wanted: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype in which a target that wants some dtype gets an array of another.

    Where numbers could become others without anybody noticing (2.7 as an integer, 2**40 in 32 bits), the
    array is sent as it is. The target checks it: the dtype before a program runs, the values when it does.
    """
    if wanted is None or _generality(found) > _generality(wanted):
        return found
    if _generality(found) == _generality(wanted) == 1 and not np.can_cast(found, wanted):
        return found
    return wanted


def _generality(dtype: np.dtype[Any]) -> int:
    """Booleans are integers, integers are floats, floats are complex numbers."""
    if is_inexact(dtype):
        return 3 if dtype.kind == "c" else 2
    return 0 if dtype.kind == "b" else 1


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype can carry derivatives (bfloat16 and its kin are of NumPy's kind V)."""
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)

"""What the bridge knows about an array before it exists: its shape and dtype, and how they are converted.

The rule for components that compute in 64 bits while JAX holds 32: what goes to the component is widened to
what its schema says, what comes back is narrowed to what JAX is configured to hold (with a
`PrecisionWarning`), and derivatives have the dtype of what they are derivatives of.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._codec import dtype_from_name, dtype_generality
from chainrule._describe import describe_array
from chainrule._trees import map_leaves
from chainrule.bridge._skeleton import take_apart


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
    """Whether arrays of this dtype can carry derivatives; bfloat16 and its like are of NumPy's kind V."""
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)


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
    """The `stacklevel`, in the caller of this function, of the code that called this library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_ours(frame.f_globals):
        frame, level = frame.f_back, level + 1
    return level


def _is_ours(names: Mapping[str, Any]) -> bool:
    return names.get("__name__", "").partition(".")[0] == __package__.partition(".")[0]

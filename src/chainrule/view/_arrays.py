"""Arrays for pages: of any library, as numbers, and as small copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainrule._trees import is_tracer, iterate_leaves

_POINTS = 512  # of an array with one axis
_SIDE = 64  # of an array with more

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def as_numbers(value: Any) -> Array | None:
    """An array of any library as one of NumPy; `None` for what are no numbers."""
    if is_tracer(value):
        raise TypeError(
            "it is traced by JAX and has no value yet; inside jit, call "
            "jax.debug.callback(lambda cost: w(cost=cost), cost)"
        )
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype.kind not in "biufcV":
        return None
    if array.dtype.kind == "c":
        return np.asarray(np.abs(array))  # of an array without axes it is a number
    return array.astype(np.float64) if array.dtype.kind == "V" else array  # short floats of JAX


def norm(tree: Any) -> float:
    """Euclidean norm of all numbers in nested data."""
    arrays = (as_numbers(leaf) for _, leaf in iterate_leaves(tree))
    wide = (array.astype(np.float64).ravel() for array in arrays if array is not None)
    squares = (np.linalg.norm(array) ** 2 for array in wide)
    return math.sqrt(sum(map(float, squares)))


def reduced(array: Array) -> Array:
    """A copy in short floats with at most `_POINTS` entries along one axis or `_SIDE` along each of two."""
    while array.ndim > 2:
        array = array[array.shape[0] // 2]
    limit = _POINTS if array.ndim == 1 else _SIDE
    for axis, length in enumerate(array.shape):
        if length > limit:
            width = math.ceil(length / limit)
            starts = np.arange(0, length, width)
            counts = np.diff([*starts, length])
            sums = np.add.reduceat(array, starts, axis=axis, dtype=float)
            array = sums / counts.reshape([-1 if k == axis else 1 for k in range(array.ndim)])
    with np.errstate(over="ignore"):
        short = array.astype(np.float32)
    is_kept = np.array_equal(np.isfinite(short), np.isfinite(array))
    return short if is_kept else array.astype(np.float64)

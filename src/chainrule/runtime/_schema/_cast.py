"""Casts that lose nothing silently.

A cast goes towards equal or greater generality (bool → integer → float → complex) and is then checked
value by value: integers must fit, finite numbers must stay finite, and an integer *array* must be exact
in the float dtype it becomes. Rounding a float to a narrower float is what the narrower field asks for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._dtypes import generality, mantissa_bits

_ONE = np.uint64(1)


def cast_checked(
    array: np.ndarray[Any, Any], target: np.dtype[Any], *, literal: bool = False
) -> np.ndarray[Any, Any]:
    """The array in another dtype with every value kept.

    Args:
        array: any numeric array.
        target: the dtype to reach.
        literal: the numbers were written out (Python numbers, JSON lists), where `3` and `3.0` mean
            the same, so an integer is rounded like any other number when it becomes a float.

    Raises:
        PydanticCustomError: the dtype cannot be cast, or a value would change.
    """
    if literal and array.size == 0:
        return array.astype(target)  # NumPy calls an empty list float64
    source_level, target_level = generality(array.dtype), generality(target)
    if source_level is None or target_level is None or source_level > target_level:
        raise _problems.dtype_mismatch(target.name, array.dtype.name, array.shape)
    if source_level == target_level == 1:
        _check_integers_fit(array, target)
        return array.astype(target)
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(target)
    if target_level >= 2 and source_level >= 1:
        _check_stays_finite(array, result)
    if source_level == 1 and target_level >= 2 and not literal:
        _check_exact(array, target)
    return result


def _check_integers_fit(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> None:
    if array.size == 0 or np.can_cast(array.dtype, target, "safe"):
        return
    limits = np.iinfo(target)
    # Compared as Python integers: NumPy would round 64-bit limits of mixed signedness.
    if int(array.min()) < limits.min or int(array.max()) > limits.max:
        outside = _count_outside(array, limits)
        raise _problems.value_lost(
            target.name, array.dtype.name, array.shape, count=outside, why="outside its range"
        )


def _count_outside(array: np.ndarray[Any, Any], limits: np.iinfo[Any]) -> int:
    own = np.iinfo(array.dtype)
    too_small = (array < limits.min).sum() if limits.min > own.min else 0
    too_large = (array > limits.max).sum() if limits.max < own.max else 0
    return int(too_small + too_large)


def _check_stays_finite(array: np.ndarray[Any, Any], result: np.ndarray[Any, Any]) -> None:
    after = np.isfinite(result)
    if after.all():
        return
    lost = int((np.isfinite(array) & ~after).sum())
    if lost:
        raise _problems.value_lost(
            result.dtype.name, array.dtype.name, array.shape, count=lost, why="too large for it"
        )


def _check_exact(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> None:
    bits = mantissa_bits(target)
    if array.size == 0 or np.iinfo(array.dtype).bits <= bits:
        return
    # An integer is exact when what is left after removing its trailing zero bits fits the mantissa.
    with np.errstate(over="ignore"):
        magnitude = np.atleast_1d(array).astype(np.uint64)  # negative numbers wrap around
        magnitude = np.where(np.atleast_1d(array) < 0, ~magnitude + _ONE, magnitude)
        lowest_bit = magnitude & (~magnitude + _ONE)
    odd_part = magnitude // np.maximum(lowest_bit, _ONE)
    inexact = int((odd_part >> np.uint64(bits) != 0).sum())
    if inexact:
        raise _problems.value_lost(
            target.name, array.dtype.name, array.shape, count=inexact,
            why="that it cannot hold exactly",
        )  # fmt: skip

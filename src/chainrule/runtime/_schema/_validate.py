"""Validation of one array against its declaration.

Most arrays are right already, so the first lines of the function that `build_validator` returns decide
that with a few attribute reads. Everything else (lists, encoded arrays, casts, broadcasts, errors) is
the slow road below. Arrays come out as read-only views, scalars as NumPy scalars of the declared dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import ValidationInfo

from . import _problems
from ._cast import cast_checked
from ._coerce import coerce, decode, is_device_array, is_tracer
from ._dtypes import describe_array, describe_type, generality, numpy_dtype
from ._spec import ArraySpec
from ._units import is_quantity, quantity_in, scaled_to

__all__ = ["build_validator", "check_shape"]

_NO_CONTEXT: Mapping[str, Any] = {}
_ENCODED_KEYS = {"shape", "dtype", "data"}
Validator = Callable[[Any, ValidationInfo], Any]


def build_validator(spec: ArraySpec) -> Validator:
    """The validator of one declaration, as pydantic calls it."""
    if spec.shape == ():
        return _scalar_validator(spec)
    return _array_validator(spec)


def _scalar_validator(spec: ArraySpec) -> Validator:
    dtype = None if spec.dtype is None else numpy_dtype(spec.dtype)
    scalar_type = type(None) if dtype is None else dtype.type
    literal_type = float if spec.dtype == "float64" else scalar_type

    def validate(value: Any, info: ValidationInfo) -> Any:
        if type(value) is scalar_type:
            return value
        if type(value) is literal_type:
            return scalar_type(value)
        return _validate_slowly(spec, dtype, value, info.context or _NO_CONTEXT)

    return validate


def _array_validator(spec: ArraySpec) -> Validator:
    dtype = None if spec.dtype is None else numpy_dtype(spec.dtype)
    rank = None if spec.shape is None else len(spec.shape)
    fixed = tuple((axis, size) for axis, size in enumerate(spec.shape or ()) if size is not None)
    ndarray = np.ndarray

    def validate(value: Any, info: ValidationInfo) -> Any:
        if type(value) is ndarray and value.dtype is dtype and value.ndim == rank:
            shape = value.shape
            for axis, size in fixed:
                if shape[axis] != size:
                    break
            else:
                return _read_only(value)
        return _validate_slowly(spec, dtype, value, info.context or _NO_CONTEXT)

    return validate


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _validate_slowly(
    spec: ArraySpec, dtype: np.dtype[Any] | None, value: Any, context: Mapping[str, Any]
) -> Any:
    if is_device_array(value) or is_tracer(value):
        return _validate_in_place(spec, dtype, value)
    array, literal = _load(spec, value, context)
    array = _fit_shape(spec, array, bool(context.get("strict_shapes")))
    if dtype is not None and array.dtype != dtype:
        if context.get("strict_types"):
            raise _problems.dtype_mismatch(dtype.name, array.dtype.name, array.shape, strict=True)
        array = cast_checked(array, dtype, literal=literal)
    return _read_only(array) if array.ndim else array[()]


def _load(
    spec: ArraySpec, value: Any, context: Mapping[str, Any]
) -> tuple[np.ndarray[Any, Any], bool]:
    """The value as a NumPy array in the declared units, and whether its numbers were written out."""
    if isinstance(value, Mapping) and value.keys() >= _ENCODED_KEYS:
        return _load_encoded(spec, value, context), False
    if is_quantity(value):
        value = quantity_in(spec.units, value)
    return coerce(value)


def _load_encoded(
    spec: ArraySpec, encoded: Mapping[str, Any], context: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    _check_announced_shape(spec, encoded, bool(context.get("strict_shapes")))
    if "units" not in encoded:
        return decode(encoded, context)
    plain = {key: part for key, part in encoded.items() if key != "units"}
    scaled = scaled_to(spec.units, decode(plain, context), encoded["units"])
    return np.asarray(scaled)


def _check_announced_shape(spec: ArraySpec, encoded: Mapping[str, Any], strict: bool) -> None:
    """Refuse a wrong shape before any byte is decoded."""
    shape = encoded["shape"]
    if isinstance(shape, list | tuple) and all(type(size) is int for size in shape):
        dtype = encoded["dtype"] if isinstance(encoded["dtype"], str) else "?"
        check_shape(spec, tuple(shape), describe_type(tuple(shape), dtype), strict=strict)


def check_shape(
    spec: ArraySpec, shape: tuple[int, ...], found: str, *, strict: bool
) -> tuple[int, ...]:
    """The shape that a value of the given shape takes, where a size of 1 broadcasts to a fixed one.

    Raises:
        PydanticCustomError: the rank or a size does not fit.
    """
    if spec.shape is None:
        return shape
    if len(shape) != len(spec.shape):
        raise _problems.rank_mismatch(spec, found, actual_dims=len(shape))
    for size, expected in zip(shape, spec.shape, strict=True):
        # A size of 1 is not stretched to 0: its value would be dropped.
        if expected is not None and size != expected and (strict or size != 1 or expected == 0):
            raise _problems.shape_mismatch(spec, found, actual_shape=shape, strict=strict)
    return tuple(
        size if expected is None else expected
        for size, expected in zip(shape, spec.shape, strict=True)
    )


def _fit_shape(spec: ArraySpec, array: np.ndarray[Any, Any], strict: bool) -> np.ndarray[Any, Any]:
    target = check_shape(spec, array.shape, describe_array(array), strict=strict)
    return array if target == array.shape else np.broadcast_to(array, target)


def _validate_in_place(spec: ArraySpec, dtype: np.dtype[Any] | None, value: Any) -> Any:
    """An array on a device, or one that is being traced: checked by shape and dtype, never moved.

    A traced array can be cast, because its values are not known yet; one on a device must be right.
    """
    shape = check_shape(spec, tuple(value.shape), describe_array(value), strict=True)
    traced = is_tracer(value)
    found = np.dtype(value.dtype if traced else value.__cuda_array_interface__["typestr"])
    if dtype is None or found == dtype:
        return value
    level, wanted = generality(found), generality(dtype)
    if not traced or level is None or wanted is None or level > wanted:
        raise _problems.dtype_mismatch(dtype.name, found.name, shape, strict=not traced)
    return value.astype(dtype)

"""Whatever a caller may hand in for an array, as a NumPy array, with the real reason when it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from chainrule._codec import DEFAULT_LIMITS, BinrefArray, decode_array
from chainrule._codec._dtypes import WHY_MASKED, has_masked
from chainrule._errors import ChainruleError
from chainrule.runtime._schema import _problems
from chainrule.runtime._schema._dtypes import (
    ALL_DTYPES,
    canonical_dtype,
    describe_value,
    generality,
)

_LITERALS = (bool, int, float, complex, list, tuple)
_TEXTS = {"U": "text", "S": "bytes"}


class Coerced(NamedTuple):
    """An array, and whether its numbers were written out rather than stored in a dtype."""

    array: np.ndarray[Any, Any]
    literal: bool


def coerce(value: Any) -> Coerced:
    """A NumPy array of numbers from nested lists, numbers and objects that NumPy can read.

    Raises:
        PydanticCustomError: `array_non_numeric`, `array_masked` or `array_value_out_of_range`.
    """
    literal = isinstance(value, _LITERALS)
    if has_masked(value):
        raise _problems.masked(WHY_MASKED)
    try:
        array = np.asarray(value)
    except Exception as error:
        raise _problems.non_numeric(_why_unreadable(value, error)) from None
    if generality(array.dtype) is None:
        raise _why_not_numbers(value, array)
    return Coerced(np.asarray(array, canonical_dtype(array.dtype)), literal)


def is_kept_in_place(value: Any) -> bool:
    """Whether an array is handed on as it is: on a GPU, in a file, or being traced."""
    return (
        hasattr(value, "__cuda_array_interface__")
        or isinstance(value, BinrefArray)
        or is_tracer(value)
    )


def is_tracer(value: Any) -> bool:
    """Whether a value is JAX's stand-in for an array while a function is traced."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def _why_unreadable(value: Any, error: Exception) -> str:
    if isinstance(value, list | tuple) and "inhomogeneous" in str(error):
        return "nested lists of unequal lengths"
    if isinstance(value, list | tuple) and "maximum number of dimension" in str(error):
        return "lists nested deeper than an array can be"
    return f"{describe_value(value)} that NumPy cannot read ({type(error).__name__}: {error})"


def _why_not_numbers(value: Any, array: np.ndarray[Any, Any]) -> Exception:
    if isinstance(value, Mapping):
        return _problems.non_numeric(_why_not_encoded(value))
    if array.dtype.kind == "O":
        kinds = {type(item) for item in array.ravel()[:1000]}
        if kinds <= {int, bool}:
            return _problems.integer_too_long(array.shape)
        names = sorted("null" if kind is type(None) else kind.__name__ for kind in kinds)
        return _problems.non_numeric(f"elements of type {', '.join(names)}")
    if array.dtype.kind in _TEXTS:
        return _problems.non_numeric(_TEXTS[array.dtype.kind])
    return _problems.non_numeric(f"data of NumPy type {array.dtype.name}")


def _why_not_encoded(value: Mapping[Any, Any]) -> str:
    missing = [key for key in ("shape", "dtype", "data") if key not in value]
    if missing:
        return f"an object without the key{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return "an object that is not an encoded array"


def check_dtype_name(encoded: Mapping[str, Any]) -> None:
    """Refuse an encoded array whose dtype nobody knows, before its bytes are looked at."""
    dtype = encoded.get("dtype")
    if not (isinstance(dtype, str) and dtype in ALL_DTYPES):
        raise _problems.invalid_dtype(dtype)


def decode(encoded: Mapping[str, Any], context: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The array of an encoded object, read with the grants and limits of the call."""
    check_dtype_name(encoded)
    limits = context.get("limits") or DEFAULT_LIMITS
    try:
        return decode_array(encoded, grants=context.get("grants"), limits=limits)
    except ChainruleError as error:
        data = encoded.get("data")
        encoding = data.get("encoding") if isinstance(data, Mapping) else None
        raise _problems.decode_failed(encoding, error) from None

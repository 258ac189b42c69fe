"""Dtypes, shapes and the bytes of one array.

Bytes on the wire are little-endian and C-ordered. The dtype names are those of Tesseract, and `bfloat16`.

Masked arrays are refused wherever arrays come in: their masked entries have no value, and NumPy returns the
numbers below the mask when it is asked for a plain array.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from chainrule._errors import DecodeError, DefinitionError

_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPE_NAMES: tuple[str, ...] = (*_FLOATS, *_INTEGERS, "bool", "complex64", "complex128", "bfloat16")

_PLAIN = {name: np.dtype(name) for name in DTYPE_NAMES if name != "bfloat16"}
_NAMES = {dtype: name for name, dtype in _PLAIN.items()}
_MAX_RANK = 64
# So that the bytes of the widest dtype, complex128, can be counted in 63 bits.
_MAX_COUNT = (2**63 - 1) // 16
NATIVE_IS_WIRE = sys.byteorder == "little"
NATIVE_NAMES: Mapping[np.dtype[Any], str] = _NAMES if NATIVE_IS_WIRE else {}
"""The dtypes whose bytes in memory are those on the wire."""


def dtype_from_name(name: Any) -> np.dtype[Any]:
    """The native dtype of a wire name.

    Raises:
        DecodeError: not one of `DTYPE_NAMES` (`array_invalid_dtype`).
    """
    try:
        return _PLAIN[name]
    except (KeyError, TypeError):
        if name == "bfloat16":
            return _bfloat16()
    found = repr(name)[:60] if isinstance(name, str) else type(name).__name__
    raise DecodeError(
        f"Expected a dtype name among {', '.join(DTYPE_NAMES)}; found {found}.",
        code="array_invalid_dtype",
        details={"allowed_dtypes": list(DTYPE_NAMES)},
    )


@lru_cache(maxsize=1)
def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise DefinitionError(
            "bfloat16 arrays need the package ml_dtypes: pip install ml_dtypes (it comes with JAX).",
            code="missing_dependency",
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


def dtype_generality(dtype: np.dtype[Any]) -> int:
    """bool 0, integers 1, floats 2 (bfloat16 and the other extension types too), complex numbers 3.

    A cast towards equal or greater generality may keep every value; one towards less may not.
    """
    if dtype.kind == "V" and "float" in dtype.name:
        return 2
    return {"b": 0, "f": 2, "c": 3}.get(dtype.kind, 1)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The wire name of a dtype in any byte order.

    Raises:
        DefinitionError: arrays of this dtype cannot be sent (objects, strings, dates, records).
    """
    known = _NAMES.get(dtype)
    if known is not None:
        return known
    name = dtype.name  # computed by NumPy in Python, so only for other byte orders and bfloat16
    if name in DTYPE_NAMES:
        return name
    raise DefinitionError(
        f"Arrays of dtype {name} cannot be encoded; use one of {', '.join(DTYPE_NAMES)}.",
        code="array_invalid_dtype",
    )


def check_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of non-negative integers; nothing is converted.

    Raises:
        DecodeError: not a list of plain integers ≥ 0, or more than 64 of them.
    """
    if isinstance(shape, (list, tuple)) and len(shape) <= _MAX_RANK:
        for size in shape:
            if type(size) is not int or size < 0:
                break
        else:
            if 0 in shape:
                _check_empty(shape)
            return tuple(shape)
    raise DecodeError(
        f"Expected a shape: a list of at most {_MAX_RANK} integers ≥ 0; found {_describe_shape(shape)}.",
        code="array_decode_error",
    )


def _check_empty(shape: Sequence[int]) -> None:
    """Refuse an array without entries that NumPy cannot make: it counts the other sizes all the same."""
    if math.prod(filter(None, shape)) > _MAX_COUNT:
        raise DecodeError(
            f"Expected an empty array whose other sizes multiply to at most {_MAX_COUNT}; found the shape "
            f"{_shown_shape(shape)}.",
            code="array_shape_too_large",
        )


def _shown_shape(shape: Sequence[int]) -> str:
    """A shape in a message, however many sizes it has and however long they are."""
    sizes = ", ".join(str(size) if size < 1 << 64 else "more than 2**64" for size in shape[:8])
    return f"[{sizes}]" if len(shape) <= 8 else f"[{sizes}, …]"


def _describe_shape(shape: Any) -> str:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        return type(shape).__name__
    if len(shape) > _MAX_RANK:
        return f"{len(shape)} entries"
    bad = next(size for size in shape if type(size) is not int or size < 0)
    return f"an entry {bad}" if isinstance(bad, (int, float)) else f"a {type(bad).__name__} entry"


def expected_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of an array, computed without overflow."""
    return math.prod(shape) * dtype.itemsize


def to_wire(array: Any) -> np.ndarray[Any, Any]:
    """An array as C-contiguous, little-endian ndarray; the very object when it already is one.

    Raises:
        DefinitionError: entries are masked (`array_masked`).
    """
    if type(array) is np.ndarray:
        if array.flags.c_contiguous and array.dtype in NATIVE_NAMES:
            return array
    elif has_masked(array):
        raise DefinitionError(f"Expected an array of numbers, found {WHY_MASKED}.", code=MASKED)
    result = np.asarray(array, order="C")
    if NATIVE_IS_WIRE and result.dtype.isnative:
        return result
    return result.astype(result.dtype.newbyteorder("<"))


def raw_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a `to_wire` array, without a copy."""
    try:
        return array.data.cast("B")
    except (TypeError, ValueError):  # no elements, or bfloat16, which memoryview does not know
        return array.reshape(-1).view(np.uint8).data


def from_wire(
    buffer: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int = 0,
    *,
    writable: bool = False,
) -> Any:
    """An array over `buffer`, without a copy where the machine can read it in place.

    It is read-only by default. A writable one is a copy where the buffer cannot be written to.
    """
    stored = dtype if NATIVE_IS_WIRE else dtype.newbyteorder("<")
    array = np.ndarray(shape, stored, buffer, offset) if 0 not in shape else np.empty(shape, stored)
    if not (array.flags.aligned and NATIVE_IS_WIRE):
        array = array.astype(dtype)
    elif writable and not array.flags.writeable:
        array = array.copy()
    array.setflags(write=writable)
    return array


MASKED = "array_masked"
"""Code of the error."""

WHY_MASKED = (
    "a masked array, whose masked entries have no value; fill them, `array.filled(value)`, or leave them "
    "out, `array.compressed()`"
)

_SUMMABLE = frozenset((int, float))


def has_masked(value: Any) -> bool:
    """Whether a value, or one inside nested lists, is a masked array with masked entries."""
    # Looked up, not imported: a masked array exists only where `numpy.ma` is imported already.
    numpy_ma = sys.modules.get("numpy.ma")
    return numpy_ma is not None and _has_masked(value, numpy_ma, _MAX_RANK)


def _has_masked(value: Any, numpy_ma: Any, max_depth: int) -> bool:
    if not isinstance(value, (list, tuple)):
        return isinstance(value, numpy_ma.MaskedArray) and bool(numpy_ma.is_masked(value))
    if not value or not max_depth:
        return False
    if type(value[0]) in _SUMMABLE:
        # A sum with a masked term is masked, and adding is faster than testing every number. Where adding
        # fails, because something else is among the numbers, each item is tested below.
        with suppress(ArithmeticError, TypeError, ValueError, Warning):
            return _has_masked(sum(value), numpy_ma, 0)
    return any(_has_masked(item, numpy_ma, max_depth - 1) for item in value)

"""The numbers of one array as JSON: nested lists, exactly or not at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainrule._errors import DecodeError

_FEW = 16
# Above this, consecutive integers are no longer all floats.
_EXACT_FLOAT = 2.0**53


def is_json_exact(array: np.ndarray[Any, Any]) -> bool:
    """Whether every reader gets back every value: no NaN, no infinities, no integers from 2**63 on.

    NumPy reads a list with integers on both sides of 2**63 as floats, and so do clients that use it.
    """
    kind = array.dtype.kind
    if kind == "u" and array.dtype.itemsize == 8:
        return array.size == 0 or int(array.max()) < 2**63
    if kind in "biu":
        return True
    if kind == "f" and array.size <= _FEW:  # two calls of NumPy take longer than these
        return all(map(math.isfinite, array.ravel().tolist()))
    return bool(np.isfinite(array).all())


def write_json_buffer(array: np.ndarray[Any, Any]) -> Any:
    """Nested lists of numbers or booleans; complex numbers as strings like `1+2j`."""
    if array.dtype.kind != "c":
        return array.tolist()
    texts = np.array([str(value).strip("()") for value in array.ravel().tolist()], dtype=object)
    return texts.reshape(array.shape).tolist()


def read_json_buffer(
    buffer: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """An array from nested lists of its shape, or from a flat list in C order.

    Whole floats are accepted for integers, `null` for NaN; nothing is rounded or wrapped.

    Raises:
        DecodeError: ragged or of another shape (`array_decode_error`), a fraction where integers belong
            (`array_expected_integer`), or a value that the dtype cannot hold
            (`array_value_out_of_range`).
    """
    given = _as_array(buffer)
    if given.dtype.kind == "f" and dtype.kind in "iu":
        given = _whole_numbers(buffer, given, dtype)
    count = math.prod(shape)
    # Lists cannot tell (1, 0, 0) from (1, 0): an empty list fits every empty shape.
    if given.shape not in (shape, (count,)) and (count or given.size):
        raise _bad(f"a list of shape {list(shape)}, or a flat one of length {count}",
                   f"shape {list(given.shape)}")  # fmt: skip
    return _cast(given, dtype).reshape(shape)


def _as_array(buffer: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(buffer)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise _bad("nested lists of equal lengths", "a ragged or non-numeric list") from None


def _cast(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if given.size == 0:
        return np.zeros(given.shape, dtype)
    if given.dtype.kind == "O":
        given = _without_nulls(given, dtype)
    if dtype.kind == "c":
        return _to_complex(given, dtype)
    if given.dtype.kind not in "biuf":
        raise _bad("numbers", "text or other values")
    if dtype.kind == "b":
        return _to_bool(given)
    if dtype.kind in "iu":
        return _to_integer(given, dtype)
    return _to_float(given, dtype)


def _without_nulls(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    flat = given.ravel().tolist()
    if dtype.kind in "iu" and all(type(value) is int for value in flat):
        _check_range(min(flat), max(flat), dtype)  # raises: NumPy keeps only longer ones as objects
    if not all(value is None or isinstance(value, (int, float, str)) for value in flat):
        raise _bad("numbers or null", "objects")
    has_text = any(isinstance(value, str) for value in flat)
    try:
        filled = [math.nan if value is None else value for value in flat]
        return np.array(filled, dtype=None if has_text else np.float64).reshape(given.shape)
    except OverflowError:
        raise _bad("numbers that fit the dtype", "an integer beyond it") from None


def _to_complex(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return given.astype(dtype)
    except (ValueError, TypeError):
        raise _bad("complex numbers written like '1+2j'", "other text") from None


def _to_bool(given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if given.dtype.kind != "b":
        raise _bad("true or false", "numbers")
    return given


def _whole_numbers(
    buffer: Any, given: np.ndarray[Any, Any], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Integers for a list that NumPy read as floats: it has floats, or integers on both sides of 2**63."""
    if not bool((given == np.trunc(given)).all()) or not bool(np.isfinite(given).all()):
        raise _bad(
            f"whole numbers for {dtype.name}",
            "a fraction, NaN or infinity",
            code="array_expected_integer",
        )
    if bool((np.abs(given) < _EXACT_FLOAT).all()):
        return given.astype(np.int64)
    exact = [int(value) for value in np.asarray(buffer, object).ravel().tolist()]
    _check_range(min(exact), max(exact), dtype)
    return np.array(exact, dtype).reshape(given.shape)


def _to_integer(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if given.dtype.kind == "f":
        raise _bad(f"whole numbers for {dtype.name}", "null")
    _check_range(int(given.min()), int(given.max()), dtype)
    return given.astype(dtype)


def _check_range(smallest: int, largest: int, dtype: np.dtype[Any]) -> None:
    info = np.iinfo(dtype)
    if smallest < info.min or largest > info.max:
        raise _bad(
            f"integers between {info.min} and {info.max}",
            "a number outside",
            code="array_value_out_of_range",
        )


def _to_float(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype.itemsize == 8:
        return given.astype(dtype, copy=False)
    with np.errstate(over="ignore"):
        result = given.astype(dtype)
    # A JSON number beyond float64 was read as infinity: this only sees what narrowing lost.
    if bool((np.isinf(result) & np.isfinite(given)).any()):
        raise _bad(
            f"numbers that fit {dtype.name}", "a larger one", code="array_value_out_of_range"
        )
    return result


def _bad(expected: str, found: str, code: str = "array_decode_error") -> DecodeError:
    return DecodeError(f"Expected {expected} in the json buffer; found {found}.", code=code)

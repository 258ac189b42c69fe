"""One array as a JSON object, the form that every Tesseract client and server understands.

    {"object_type": "array", "shape": [2, 3], "dtype": "float64",
     "data": {"buffer": …, "encoding": "json" | "base64" | "binref", "compression": "lz4"}}

An array that stays on a GPU has `"data": {"buffer": place, "encoding": "cuda_ipc"}` and is a `DeviceArray`
here; `chainrule._device_exchange` knows places.

`compression` is absent unless set. `object_type` may be absent in what we read and is always written.
Every decoded array is read-only; sizes are checked before anything is allocated. Numbers in nested lists
(encoding `json`) are read exactly or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import pybase64

from chainrule._codec._binrefs import (
    NO_GRANTS,
    BinrefArray,
    BinrefWriter,
    Grants,
    Reference,
    read_binref,
)
from chainrule._codec._compression import compress, decompress
from chainrule._codec._declared import (
    DEFAULT_LIMITS,
    Budget,
    Limits,
    check_shape,
    dtype_from_name,
    dtype_name,
    expected_bytes,
    from_wire,
    raw_bytes,
    to_wire,
)
from chainrule._errors import DecodeError, DefinitionError
from chainrule._trees import map_leaves

Encoding = Literal["json", "base64", "binref"]
_ON_DEVICE = "cuda_ipc"


@dataclass(frozen=True)
class DeviceArray:
    """An array that stays in the memory of a GPU while its body travels.

    Attributes:
        dtype: its name.
        shape: of the array.
        place: where its numbers are, as text.
    """

    dtype: str
    shape: tuple[int, ...]
    place: str


def device_array_within(sizes: Any, name: Any, place: Any, budget: Budget) -> DeviceArray:
    """A `DeviceArray` that a body declares, if it is sound and within the budget."""
    shape, dtype = check_shape(sizes), dtype_from_name(name)
    budget.take(expected_bytes(shape, dtype))
    if not isinstance(place, str):
        raise _malformed("text as the place of an array on a GPU", type(place).__name__)
    return DeviceArray(dtype.name, shape, place)


def decode_tree(tree: Any) -> Any:
    """Nested data with every encoded array turned into a NumPy array."""
    return map_leaves(
        lambda leaf: decode_array(leaf) if is_encoded_array(leaf) else leaf,
        tree,
        is_leaf=is_encoded_array,
    )


def is_encoded_array(obj: Any) -> bool:
    """Whether an object claims to be an encoded array; `decode_array` then says if it is a sound one."""
    if not _is_mapping(obj):
        return False
    if "object_type" in obj:
        return bool(obj["object_type"] == "array")
    return "shape" in obj and "dtype" in obj and _is_mapping(obj.get("data"))


def decode_array(
    encoded: Mapping[str, Any],
    *,
    grants: Grants | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> np.ndarray[Any, Any]:
    """The array that an encoded object stands for.

    Args:
        encoded: a mapping in the form described by this module.
        grants: folders and addresses that a `binref` may name; none by default.
        limits: bounds on the declared size.

    Returns:
        A read-only array of exactly the declared shape and dtype (0-d for scalars).

    Raises:
        DecodeError: the object is malformed, or its bytes do not match its shape and dtype.
        LimitError: the declared array is too large (`array_too_large`).
        NotGrantedError: a reference lies outside the grants (`path_not_granted`).

    Example:
        >>> decode_array({"shape": [2], "dtype": "int8", "data": {"encoding": "base64", "buffer": "AQI="}})
        array([1, 2], dtype=int8)
    """
    return decode_array_within(encoded, grants or NO_GRANTS, Budget(limits))


def decode_array_within(
    encoded: Mapping[str, Any],
    grants: Grants,
    budget: Budget,
    *,
    writable: bool = False,
    on_device: bool = False,
) -> Any:
    """`decode_array` for one of several arrays that share a budget.

    Args:
        encoded: as of `decode_array`.
        grants: as of `decode_array`.
        budget: of all of them.
        writable: whether the array can be written to.
        on_device: whether it may be a `DeviceArray`.
    """
    sizes, name, data = _ARRAY.of(encoded)
    if encoded.get("object_type", "array") != "array":
        raise _malformed("object_type 'array'", "another object_type")
    shape, dtype = check_shape(sizes), dtype_from_name(name)
    if not _is_mapping(data):
        raise _malformed("data as an object with buffer and encoding", type(data).__name__)
    encoding, buffer = _DATA.of(data)
    if on_device and encoding == _ON_DEVICE:
        return device_array_within(sizes, name, buffer, budget)
    nbytes = expected_bytes(shape, dtype)
    budget.take(nbytes)
    if encoding == "binref":
        budget.expand(nbytes)
    else:
        is_compressed = data.get("compression") is not None
        budget.expand_array(nbytes, dtype.itemsize, is_compressed=is_compressed)
    array = _decode_data(encoding, buffer, data.get("compression"), shape, dtype, grants)
    if writable and not array.flags.writeable:
        array = array.copy()
    array.flags.writeable = writable
    return array


def _decode_data(
    encoding: Any,
    buffer: Any,
    compression: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    grants: Grants,
) -> np.ndarray[Any, Any]:
    if encoding == "base64":
        return _decode_base64(buffer, compression, shape, dtype)
    if encoding == "json":
        if compression is not None:
            raise _malformed("no compression with encoding 'json'", "one")
        return read_json_buffer(buffer, shape, dtype)
    if encoding == "binref":
        return read_binref(Reference.parse(buffer), shape, dtype, compression, grants)
    found = repr(encoding)[:40] if isinstance(encoding, str) else type(encoding).__name__
    raise _malformed("encoding 'json', 'base64' or 'binref'", found)


def _decode_base64(
    buffer: Any, compression: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    if not isinstance(buffer, str):
        raise _malformed("base64 text in data.buffer", type(buffer).__name__)
    nbytes = expected_bytes(shape, dtype)
    if compression is None and len(buffer) != (nbytes + 2) // 3 * 4:
        raise _malformed(
            f"{(nbytes + 2) // 3 * 4} characters of base64 for {dtype.name}{list(shape)}",
            f"{len(buffer)}",
        )
    try:
        content: Any = pybase64.b64decode_as_bytearray(buffer, validate=True)
    except ValueError:
        raise _malformed("standard base64 with padding", "other text") from None
    if compression is not None:
        content = decompress(content, compression, nbytes)
    if len(content) != nbytes:
        raise _malformed(f"{nbytes} bytes for {dtype.name}{list(shape)}", f"{len(content)}")
    return from_wire(content, shape, dtype, writable=True)


def _is_mapping(obj: Any) -> bool:
    # Asking an abstract class takes longer than decoding a small array.
    return type(obj) is dict or isinstance(obj, Mapping)


class _Members:
    """The keys that a mapping must have, and one that it may have; others it may not."""

    def __init__(self, *names: str, optional: str) -> None:
        self._names, self._optional = names, optional
        self._values = itemgetter(*names)

    def of(self, mapping: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the keys that must be there."""
        try:
            values: tuple[Any, ...] = self._values(mapping)
        except KeyError as missing:
            raise _malformed(f"the key {missing} in an encoded array", "none") from None
        if len(mapping) > len(values) + (self._optional in mapping):
            allowed = [*self._names, self._optional]
            extra = next(key for key in mapping if key not in allowed)
            raise _malformed(f"only the keys {allowed}", repr(extra)[:60])
        return values


_ARRAY = _Members("shape", "dtype", "data", optional="object_type")
_DATA = _Members("encoding", "buffer", optional="compression")


def _malformed(expected: str, found: str) -> DecodeError:
    return DecodeError(f"Expected {expected}; found {found}.", code="array_decode_error")


# Numbers as nested lists

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


# Encoding


def encode_array(
    array: Any,
    *,
    encoding: Encoding = "json",
    compression: str | None = None,
    writer: BinrefWriter | None = None,
) -> dict[str, Any]:
    """An array as a JSON-ready object.

    Args:
        array: anything NumPy can read, or a `BinrefArray`, which is forwarded as it is under `binref`.
        encoding: how the values travel. Under `json`, arrays that JSON cannot carry exactly (NaN,
            infinities, integers from 2**63 on) travel as base64, which every client decodes.
        compression: `"lz4"` or `None`; ignored by `json`, which cannot be compressed.
        writer: where `binref` puts the bytes.

    Raises:
        DefinitionError: a dtype without a wire name, or `binref` without a writer.
        StorageError: `binref` could not be written.

    Example:
        >>> encode_array(np.float32([1, 2]))["data"]
        {'buffer': [1.0, 2.0], 'encoding': 'json'}
    """
    return ArrayEncoder(encoding, compression, writer)(array)


@dataclass(slots=True)  # not frozen: making one would take as long as encoding a small array
class ArrayEncoder:
    """`encode_array` with its choices made; a body's encoder swaps the two functions for faster ones."""

    encoding: Encoding
    compression: str | None = None
    writer: BinrefWriter | None = None
    json_buffer: Callable[[np.ndarray[Any, Any]], Any] = write_json_buffer
    base64_text: Callable[[Any], Any] = pybase64.b64encode_as_string

    def __call__(self, array: Any) -> dict[str, Any]:
        """Encode one array."""
        if isinstance(array, DeviceArray):
            data = {"buffer": array.place, "encoding": _ON_DEVICE}
            return _encoded(array.shape, array.dtype, data)
        if isinstance(array, BinrefArray):
            if self.encoding == "binref":
                return _encoded(array.shape, array.dtype, _referred(array))
            array = array.load()
        wire = to_wire(array)
        return _encoded(wire.shape, dtype_name(wire.dtype), self._data(wire))

    def _data(self, wire: np.ndarray[Any, Any]) -> dict[str, Any]:
        if self.encoding == "binref":
            return _referred(self._need_writer().write(wire, compression=self.compression))
        if self.encoding == "json" and is_json_exact(wire):
            return {"buffer": self.json_buffer(wire), "encoding": "json"}
        content: Any = raw_bytes(wire)
        if self.compression is None or self.encoding == "json":
            return {"buffer": self.base64_text(content), "encoding": "base64"}
        text = self.base64_text(compress(content, self.compression))
        return {"buffer": text, "encoding": "base64", "compression": self.compression}

    def _need_writer(self) -> BinrefWriter:
        if self.writer is None:
            raise DefinitionError(
                "The encoding 'binref' needs an output folder: pass writer=BinrefWriter(folder).",
                code="output_folder_missing",
            )
        return self.writer


def _referred(array: BinrefArray) -> dict[str, Any]:
    data: dict[str, Any] = {"buffer": array.buffer, "encoding": "binref"}
    if array.compression is not None:
        data["compression"] = array.compression
    return data


def _encoded(shape: tuple[int, ...], dtype: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"object_type": "array", "shape": list(shape), "dtype": dtype, "data": data}

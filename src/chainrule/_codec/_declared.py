"""What a body declares, and how much of it is accepted: dtypes, shapes and bytes of arrays, within `Limits`.

Both are checked before anything is allocated. Bytes on the wire are little-endian and C-ordered. The dtype
names are those of Tesseract, and `bfloat16`.

Masked arrays are refused wherever arrays come in: their masked entries have no value, and NumPy returns the
numbers below the mask when it is asked for a plain array.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from chainrule._errors import DecodeError, DefinitionError, LimitError, missing_dependency

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
        raise missing_dependency("bfloat16 arrays need", "ml_dtypes", "ml_dtypes") from None
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


_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds on what a decoder accepts.

    Attributes:
        max_body_bytes: bytes of one encoded body, as received.
        max_array_bytes: bytes of one decoded array.
        max_total_bytes: bytes of all decoded arrays of one body together, so that a thousand small
            compressed buffers cannot do what one large one may not.
        max_expanded_bytes: memory for what is not in the body itself: compressed bodies and buffers once they
            are expanded, files that the body refers to, and bytes that several arrays share. A body of
            30 kB can expand to a gigabyte. By default a body stands for no more than one can hold.
        max_parsed_bytes: memory for the Python objects that JSON text is parsed into. A number of two
            bytes takes up to 48; in base64 or frames it takes eight.
        max_fields: mapping entries and list items of one body, array contents not counted.
        max_depth: nesting of mappings and lists, array contents not counted.
        is_expanded: the body was compressed as a whole, so that none of its arrays was received as it is.
    """

    max_body_bytes: int = 512 * _MIB
    max_array_bytes: int = 1024 * _MIB
    max_total_bytes: int = 2048 * _MIB
    max_expanded_bytes: int = 512 * _MIB
    max_parsed_bytes: int = 2048 * _MIB
    max_fields: int = 100_000
    max_depth: int = 64
    is_expanded: bool = False

    def check_body(self, nbytes: int) -> None:
        """Refuse a body that is larger than `max_body_bytes`."""
        if nbytes > self.max_body_bytes:
            raise LimitError(
                f"The body has {nbytes} bytes, the limit is {self.max_body_bytes}. Send the arrays in "
                "application/vnd.chainrule.frames, or ask the operator to raise max_body_bytes.",
                code="body_too_large",
                details={"nbytes": nbytes, "limit": self.max_body_bytes},
            )

    def shared_by(self, count: int) -> Limits:
        """The limits of each of several bodies whose data are in memory at the same time."""
        if count == 1:
            return self
        return replace(
            self,
            max_total_bytes=self.max_total_bytes // count,
            max_expanded_bytes=self.max_expanded_bytes // count,
            max_parsed_bytes=self.max_parsed_bytes // count,
        )

    def after_expanding(self, nbytes: int) -> Limits:
        """The limits that are left for the data of a body that was compressed as a whole.

        What is parsed is then not in the body either, so it has to fit into the same memory.
        """
        left = self.max_expanded_bytes - nbytes
        parsed = min(self.max_parsed_bytes, left)
        return replace(self, max_expanded_bytes=left, max_parsed_bytes=parsed, is_expanded=True)


DEFAULT_LIMITS = Limits()

TRUSTING_LIMITS = Limits(
    max_body_bytes=1 << 50,
    max_array_bytes=1 << 50,
    max_total_bytes=1 << 50,
    max_expanded_bytes=1 << 50,
    max_parsed_bytes=1 << 50,
    max_fields=1 << 30,
)
"""For bodies of our own processes, or of a server that the user chose: any size, the same checks of form."""


def expansion_too_large(nbytes: int | None, limit: int) -> LimitError:
    """The error for a body that expands to too many bytes; `None` when their number is not known."""
    found = "more" if nbytes is None else f"{nbytes} bytes"
    return LimitError(
        f"Compressed data and files of one body may come to {limit} bytes; found {found}. Send the data "
        "uncompressed, or ask the operator to raise --max-expanded-bytes and --max-inflight-bytes.",
        code="expansion_too_large",
        details={"limit": limit},
    )


@dataclass
class Budget:
    """What is left of the limits while one body is decoded."""

    limits: Limits = DEFAULT_LIMITS
    fields_left: int = field(init=False)
    bytes_left: int = field(init=False)
    expanded_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.fields_left = self.limits.max_fields
        self.bytes_left = self.limits.max_total_bytes
        self.expanded_left = self.limits.max_expanded_bytes

    def enter(self, count: int, depth: int) -> None:
        """Account for one mapping or list with `count` entries at nesting `depth`.

        Raises:
            LimitError: too deep, or too many fields in this body.
        """
        self.fields_left -= count
        if depth > self.limits.max_depth:
            raise LimitError(
                f"The data is nested deeper than {self.limits.max_depth} levels.",
                code="too_deep",
                details={"limit": self.limits.max_depth},
            )
        if self.fields_left < 0:
            raise LimitError(
                f"The body has more than {self.limits.max_fields} fields. Send many numbers as one "
                "array instead of many fields.",
                code="too_many_fields",
                details={"limit": self.limits.max_fields},
            )

    def take(self, nbytes: int) -> None:
        """Account for one array of `nbytes`, before it is allocated.

        Raises:
            LimitError: the array, or all arrays of this body together, would be too large.
        """
        if nbytes > min(self.limits.max_array_bytes, self.bytes_left):
            limit = min(self.limits.max_array_bytes, self.bytes_left)
            raise LimitError(
                f"An array of {nbytes} bytes was declared, at most {limit} are allowed here "
                f"(max_array_bytes={self.limits.max_array_bytes}, "
                f"max_total_bytes={self.limits.max_total_bytes}).",
                code="array_too_large",
                details={"nbytes": nbytes, "limit": limit},
            )
        self.bytes_left -= nbytes

    def expand(self, nbytes: int) -> None:
        """Account for memory of what is not in the body, before it is read or expanded.

        Raises:
            LimitError: this body has too many of them.
        """
        if nbytes > self.expanded_left:
            raise expansion_too_large(nbytes, self.limits.max_expanded_bytes)
        self.expanded_left -= nbytes

    def expand_array(self, nbytes: int, itemsize: int, *, is_compressed: bool) -> None:
        """Account for an array that was not received as it is. A schema may cast its elements to eight bytes.

        Raises:
            LimitError: this body has too many of them.
        """
        if is_compressed or self.limits.is_expanded:
            self.expand(max(nbytes, nbytes // itemsize * 8))

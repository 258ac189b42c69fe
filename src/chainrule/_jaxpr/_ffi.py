"""An XLA FFI handler in Python: XLA hands over pointers, NumPy sees arrays, nothing is copied.

XLA calls a registered C function with one `XLA_FFI_CallFrame`. Here that function is a `ctypes` callback: it
reads the frame, makes NumPy views of the operand and result buffers and calls the host function that the
call's one attribute, a number, stands for. `jax.pure_callback` does the same through several layers of copies
and conversions, at about eight times the cost of a small call.

The layouts below are those of `xla/ffi/api/c_api.h` (API major version 0), which ships with jaxlib. XLA keeps
them stable within a major version and only appends; `_problem` compares sizes and version before the
first field is trusted, and `tests/bridge/test_ffi_layout.py` compares them with the header itself.

Invariant: no exception leaves the handler. `ctypes` would swallow it, and XLA would take whatever is in the
result buffers for an answer.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np

__all__ = ["TARGET", "HostFunction", "register_function", "supports", "target_is_registered"]

TARGET = "chainrule_host_call"

# Padding stands for fields that are not read.
CALL_FRAME = struct.Struct("=QQQ16x" + "16xq8xQ" + "16xq8xQ" + "40xQ")
"""struct_size, extension, api; count and table of the arguments, of the results; table of the attributes."""
BUFFER = struct.Struct("=16xi4xQqQ")
"""dtype, data, rank, dims."""
SCALAR = struct.Struct("=8xQ")
"""Address of the value."""
EXTENSION = struct.Struct("=8xi12xQ")
"""Kind, and for the metadata extension the address of the metadata."""
API_HEADER = struct.Struct("=Q24xi12x")
"""struct_size and major version; the table of functions follows."""
ERROR_CREATE = struct.Struct("=QQQi4x")
"""struct_size, extension, message, status code."""

_API_VERSION_OFFSET = 32
_METADATA_VERSION_OFFSET = (
    8 + 16
)  # struct_size, then major and minor inside the nested version struct
_METADATA_EXTENSION = 1
_UNKNOWN = 2  # absl's status code for "an error raised by somebody else"

_DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(scalar)
    for code, scalar in {
        1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16,
        8: np.uint32, 9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64,
        15: np.complex64, 16: ml_dtypes.bfloat16, 18: np.complex128,
    }.items()
}  # fmt: skip
_SUPPORTED = frozenset(_DTYPES.values())


class HostFunction(Protocol):
    """What a call's number stands for."""

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Fill `results`; return `None`, or the text of the error. Never raises."""
        ...


_numbers = itertools.count(1)
_functions: weakref.WeakValueDictionary[int, HostFunction] = weakref.WeakValueDictionary()
_numbers_of: weakref.WeakKeyDictionary[HostFunction, int] = weakref.WeakKeyDictionary()


def register_function(function: HostFunction) -> int:
    """The number by which compiled programs find a function, for as long as somebody keeps it alive.

    The same function has the same number, so that XLA sees equal calls as equal and merges them.
    """
    number = _numbers_of.get(function)
    if number is None:
        number = _numbers_of[function] = next(_numbers)
        _functions[number] = function
    return number


def supports(dtypes: Sequence[Any]) -> bool:
    """Whether NumPy can view buffers of all these dtypes (four-bit types, for one, it cannot)."""
    return all(dtype in _SUPPORTED for dtype in dtypes)


# `ctypes.string_at` without its Python wrapper: the handler reads memory a dozen times per call.
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_ADDRESSES = [struct.Struct(f"={count}Q") for count in range(64)]
_SIZES = [struct.Struct(f"={rank}q") for rank in range(64)]


def _handle(address: int) -> int | None:
    size, extension, api, operand_count, operands, result_count, results, attributes = (
        CALL_FRAME.unpack(_bytes_at(address, CALL_FRAME.size))
    )
    try:
        if extension and _answer_metadata(extension, api):
            return None
        text = _problem(size, api) or _execute(
            operand_count, operands, result_count, results, attributes
        )
    except BaseException as error:
        text = f"chainrule's host call failed: {type(error).__name__}: {error}"
    return None if text is None else _new_error(api, text)


def _answer_metadata(extension: int, api: int) -> bool:
    """Before compiling XLA asks which version the handler speaks: its own, since layouts only grow."""
    kind, metadata = EXTENSION.unpack(_bytes_at(extension, EXTENSION.size))
    if kind != _METADATA_EXTENSION:
        return False
    version = _bytes_at(api + _API_VERSION_OFFSET, 8)
    ctypes.memmove(metadata + _METADATA_VERSION_OFFSET, version, 8)
    return True


@cache
def _problem(size: int, api: int) -> str | None:
    """What is wrong with this XLA's interface, by the size of a frame and the address of the API."""
    api_size, major = API_HEADER.unpack(_bytes_at(api, API_HEADER.size))
    if major == 0 and size >= CALL_FRAME.size and api_size >= API_HEADER.size + 8:
        return None
    return (
        f"This jaxlib speaks XLA FFI {major} with call frames of {size} bytes; chainrule knows major "
        f"version 0 with frames of {CALL_FRAME.size} bytes. Set CHAINRULE_HOST_CALL=callback."
    )


def _execute(
    operand_count: int, operands: int, result_count: int, results: int, attributes: int
) -> str | None:
    number = _read_number(attributes)
    function = _functions.get(number)
    if function is None:
        return (
            f"The compiled program calls host function {number}, which is not alive in this process: it "
            "was compiled elsewhere, or outlived everything that knew its component."
        )
    return function.run(_views(operand_count, operands), _views(result_count, results))


def _read_number(attributes: int) -> int:
    (scalar,) = _ADDRESSES[1].unpack(_bytes_at(attributes, 8))
    (value,) = SCALAR.unpack(_bytes_at(scalar, SCALAR.size))
    return _SIZES[1].unpack(_bytes_at(value, 8))[0]


def _views(count: int, table: int) -> list[np.ndarray]:
    pointers = _ADDRESSES[count] if count < len(_ADDRESSES) else struct.Struct(f"={count}Q")
    return [_view(address) for address in pointers.unpack(_bytes_at(table, pointers.size))]


def _view(address: int) -> np.ndarray:
    code, data, rank, dims = BUFFER.unpack(_bytes_at(address, BUFFER.size))
    shape = _SIZES[rank].unpack(_bytes_at(dims, 8 * rank))
    dtype = _DTYPES[code]
    byte_count = dtype.itemsize * math.prod(shape)
    if byte_count == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, (ctypes.c_char * byte_count).from_address(data))


_CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


def _new_error(api: int, text: str) -> int:
    """An error object of XLA, made by the first function of the API's table."""
    (pointer,) = _ADDRESSES[1].unpack(_bytes_at(api + API_HEADER.size, 8))
    message = ctypes.create_string_buffer(text.encode())
    return _CREATE_ERROR(pointer)(ERROR_CREATE.pack(28, 0, ctypes.addressof(message), _UNKNOWN))


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_handle)
_registration = threading.Lock()
_registered: list[bool] = []


def target_is_registered() -> bool:
    """Register the handler with XLA's CPU backend at the first call; whether XLA accepted it."""
    with _registration:
        if not _registered:
            _registered.append(_register())
    return _registered[0]


def _register() -> bool:
    pointer = ctypes.cast(_HANDLER, ctypes.c_void_p).value
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(pointer), platform="cpu")
    except Exception:  # another XLA, another interface: the caller has a slower way
        return False
    return True

"""An XLA FFI handler in Python: XLA hands over pointers, NumPy sees arrays, nothing is copied.

XLA calls a registered C function with one `XLA_FFI_CallFrame`. Here that function is a `ctypes` callback: it
reads the frame, makes NumPy views of the operand and result buffers and calls the host function that the
call's one attribute, a number, stands for. `jax.pure_callback` does the same through several layers of copies
and conversions, at about eight times the cost of a small call.

The layouts below are those of `xla/ffi/api/c_api.h` (API major version 0), which ships with jaxlib. XLA keeps
them stable within a major version and only appends; `_check_frame` compares sizes and version before the
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
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np

__all__ = ["TARGET", "HostFunction", "register_function", "supports", "target_is_registered"]

TARGET = "chainrule_host_call"

# name → (format, fields); `=` and explicit padding, so that the sizes are those of the C compiler.
CALL_FRAME = struct.Struct("=QQQQi4x" + "QQqQQ" + "QQqQQ" + "QQqQQQ")
BUFFER = struct.Struct("=QQi4xQqQ")
SCALAR = struct.Struct("=i4xQ")
EXTENSION = struct.Struct("=Qi4xQQ")
API_HEADER = struct.Struct("=QQQQiiQ")
ERROR_CREATE = struct.Struct("=QQQi4x")

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


def _handle(address: int) -> int | None:
    frame = ctypes.string_at(address, CALL_FRAME.size)
    size, extension, api, _, _, *spans = CALL_FRAME.unpack(frame)
    if extension and _answer_metadata(extension, api):
        return None
    try:
        text = _check_frame(size, api) or _execute(spans)
    except BaseException as error:
        text = f"chainrule's host call failed: {type(error).__name__}: {error}"
    return None if text is None else _new_error(api, text)


def _answer_metadata(extension: int, api: int) -> bool:
    """At registration XLA asks which version the handler speaks: its own, since layouts only grow."""
    _, kind, _, metadata = EXTENSION.unpack(ctypes.string_at(extension, EXTENSION.size))
    if kind != _METADATA_EXTENSION:
        return False
    version = ctypes.string_at(api + 32, 8)
    ctypes.memmove(metadata + _METADATA_VERSION_OFFSET, version, 8)
    return True


def _check_frame(size: int, api: int) -> str | None:
    api_size, *_, major, _minor, _ = API_HEADER.unpack(ctypes.string_at(api, API_HEADER.size))
    if major == 0 and size >= CALL_FRAME.size and api_size >= API_HEADER.size + 8:
        return None
    return (
        f"This jaxlib speaks XLA FFI {major} with call frames of {size} bytes; chainrule knows major "
        f"version 0 with frames of {CALL_FRAME.size} bytes. Set CHAINRULE_HOST_CALL=callback."
    )


def _execute(spans: list[int]) -> str | None:
    _, _, operand_count, _, operand_table = spans[:5]
    _, _, result_count, _, result_table = spans[5:10]
    attributes = spans[15]
    number = _read_number(attributes)
    function = _functions.get(number)
    if function is None:
        return (
            f"The compiled program calls host function {number}, which is not alive in this process: it was "
            "compiled elsewhere, or outlived everything that knew its component."
        )
    return function.run(_views(operand_count, operand_table), _views(result_count, result_table))


def _read_number(attributes: int) -> int:
    (scalar,) = struct.unpack("=Q", ctypes.string_at(attributes, 8))
    _, value = SCALAR.unpack(ctypes.string_at(scalar, SCALAR.size))
    return int.from_bytes(ctypes.string_at(value, 8), "little")


def _views(count: int, table: int) -> list[np.ndarray]:
    addresses = struct.unpack(f"={count}Q", ctypes.string_at(table, 8 * count))
    return [_view(address) for address in addresses]


def _view(address: int) -> np.ndarray:
    _, _, code, data, rank, dims = BUFFER.unpack(ctypes.string_at(address, BUFFER.size))
    shape = struct.unpack(f"={rank}q", ctypes.string_at(dims, 8 * rank))
    dtype = _DTYPES[code]
    byte_count = dtype.itemsize * math.prod(shape)
    if byte_count == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, (ctypes.c_char * byte_count).from_address(data))


_CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


def _new_error(api: int, text: str) -> int:
    """An error object of XLA, made by the first function of the API's table."""
    (pointer,) = struct.unpack("=Q", ctypes.string_at(api + API_HEADER.size, 8))
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

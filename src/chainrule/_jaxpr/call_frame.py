"""The layout of XLA's call frames: the only place that knows it.

XLA calls a foreign function with the address of one `XLA_FFI_CallFrame`. Two handlers read it: the one in
Python (`_host_call`), which unpacks whole structures, and the one that `elimination` emits in LLVM, which
loads fields at their offsets. Both take the offsets from here.

The offsets are those of `xla/ffi/api/c_api.h` (API major version 0), which ships with jaxlib, on platforms
with pointers of 64 bits. XLA keeps them within a major version and only appends fields.
`tests/bridge/test_host_call.py` compares them with the header.
"""

from __future__ import annotations

import re
import struct
import sys
from functools import cache
from pathlib import Path

import jax


def _record(size: int, **fields: tuple[int, str]) -> struct.Struct:
    """A structure that unpacks the given (offset, format) fields; everything between them is skipped."""
    layout, position = "=", 0
    for offset, kind in fields.values():
        layout += f"{offset - position}x{kind}"
        position = offset + struct.calcsize("=" + kind)
    return struct.Struct(f"{layout}{size - position}x")


FRAME_EXTENSION, FRAME_API, FRAME_STAGE = 8, 16, 32
FRAME_OPERANDS, FRAME_RESULTS, FRAME_ATTRIBUTES = 40 + 32, 80 + 32, 120 + 40
"""Where a frame has the tables of its nested `XLA_FFI_Args`, `XLA_FFI_Rets` and `XLA_FFI_Attrs`."""

CALL_FRAME = _record(
    120 + 48,
    struct_size=(0, "Q"),
    extension=(FRAME_EXTENSION, "Q"),
    api=(FRAME_API, "Q"),
    operands=(FRAME_OPERANDS, "Q"),
    results=(FRAME_RESULTS, "Q"),
    attributes=(FRAME_ATTRIBUTES, "Q"),
)

STAGE_EXECUTE = 3
"""The stage in which a handler computes; XLA also calls it to prepare and to initialise."""

BUFFER_DATA, BUFFER_RANK, BUFFER_DIMENSIONS = 24, 32, 40
SCALAR_VALUE = 8

EXTENSION_KIND, EXTENSION_METADATA = 8, 24
EXTENSION = _record(32, kind=(EXTENSION_KIND, "i"), metadata=(EXTENSION_METADATA, "Q"))
METADATA_EXTENSION = 1
"""The kind of the extension with which XLA asks, before it compiles, which version a handler speaks."""
METADATA_VERSION = 8 + 16
"""Where the answer goes: major and minor, 32 bits each, inside the nested `XLA_FFI_Api_Version`."""

API_HEADER = _record(48, struct_size=(0, "Q"), major=(16 + 16, "i"))
"""The table of functions follows it."""

ERROR_CREATE = _record(
    32, struct_size=(0, "Q"), extension=(8, "Q"), message=(16, "Q"), status=(24, "i")
)


@cache
def ffi_version() -> int:
    """The version of the interface that handlers speak, as XLA reads it: major and minor, 32 bits each.

    It is that of the header that came with jaxlib, since layouts only grow.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    numbers = re.findall(r"^#define XLA_FFI_API_M(?:AJOR|INOR) (\d+)", header, re.MULTILINE)
    return int.from_bytes(struct.pack("=ii", *map(int, numbers)), sys.byteorder)

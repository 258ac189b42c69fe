r"""The native body: one JSON header and raw buffers, read in place.

A message is the same bytes over HTTP, a pipe, a file or shared memory (all integers little-endian):

    0   8 bytes   magic  89 43 52 46 0D 0A 1A 0A   ("\x89CRF\r\n\x1a\n")
    8   uint16    version, 1
    10  uint16    reserved, 0
    12  uint32    length of the header in bytes
    16  uint64    length of the whole message in bytes
    24  header    UTF-8 JSON: the tree
        zeros     up to the next multiple of 64, where the data section begins
        data      buffers; each begins at a multiple of 64, gaps are zeros

In the tree, an object with exactly one member whose name starts with `$` stands for something else:

    {"$array": [dtype, shape, offset, nbytes]}               offset from the start of the data section
    {"$array": [dtype, shape, offset, nbytes, compression]}  `lz4` or `zstd`; nbytes as stored
    {"$sparse": {"shape": shape, "indices": array, "values": array}}
    {"$float": "nan" | "inf" | "-inf"}    {"$int": digits}   numbers that JSON cannot carry
    {"$map": object}                                         an object that would read as one of these

`docs/explanation/wire-format.md` has a test vector.
"""

from __future__ import annotations

import struct
from typing import Any

FRAMES_MEDIA_TYPE = "application/vnd.chainrule.frames"
PREFIX = struct.Struct("<8sHHIQ")
MAGIC = b"\x89CRF\r\n\x1a\n"
VERSION = 1
ALIGNMENT = 64


def padding(position: int) -> int:
    """How many zeros follow this many bytes."""
    return -position % ALIGNMENT


def is_marked(node: dict[Any, Any]) -> bool:
    """Whether an object with one member stands, or would be taken to stand, for something else."""
    (key,) = node
    return isinstance(key, str) and key.startswith("$")

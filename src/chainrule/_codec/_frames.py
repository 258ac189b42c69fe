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

In the tree, an object with exactly one member whose name starts with `$` stands for another value:

    {"$array": [dtype, shape, offset, nbytes]}               offset from the start of the data section
    {"$array": [dtype, shape, offset, nbytes, compression]}  `lz4` or `zstd`; nbytes as stored
    {"$device": [dtype, shape, place]}                       in the memory of a GPU; see `_device_exchange`
    {"$sparse": {"shape": shape, "indices": array, "values": array}}
    {"$float": "nan" | "inf" | "-inf"}    {"$int": digits}   numbers that JSON cannot carry
    {"$map": object}                                         an object that would read as one of these

`docs/explanation/wire-format.md` has a test vector.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from chainrule._codec._arrays import DeviceArray, device_array_within
from chainrule._codec._compression import compress, decompress
from chainrule._codec._declared import (
    DEFAULT_LIMITS,
    NATIVE_NAMES,
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
from chainrule._codec._json_trees import (
    NOT_SPECIAL,
    is_array,
    parse_json,
    replace_leaves,
    restore_items,
    restore_leaves,
    to_plain,
    write_json,
)
from chainrule._codec._sparse import SparseArray, decoded_sparse, to_dense
from chainrule._errors import DecodeError

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


_ZEROS = bytes(ALIGNMENT)
# Buffers below this size are joined into one piece: sending a piece costs more than copying them.
_GATHER_BELOW = 16 * 1024


@dataclass(frozen=True)
class Frames:
    """An encoded message as pieces in memory; large arrays are not copied.

    Attributes:
        pieces: buffers which, one after the other, are the message.
        nbytes: length of the message.
    """

    pieces: tuple[bytes | memoryview, ...]
    nbytes: int

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


def encode_frames(tree: Any, *, compression: str | None = None, sparse: bool = True) -> Frames:
    """Nested data with arrays as one message.

    Args:
        tree: mappings, sequences, models; leaves are arrays, `SparseArray`s and plain values.
        compression: `"lz4"` or `"zstd"` for every buffer that gets smaller by it.
        sparse: whether sparse arrays are sent as such; otherwise they are sent dense.

    Example:
        >>> import numpy as np
        >>> message = bytes(encode_frames({"x": np.arange(3.0)}))
        >>> decode_frames(message)["x"]
        array([0., 1., 2.])
    """
    section = _DataSection(compression, sparse)
    header = write_json(tree, section, orjson.OPT_NON_STR_KEYS)
    start = PREFIX.size + len(header)
    start += padding(start)
    total = start + section.nbytes
    prefix = PREFIX.pack(MAGIC, VERSION, 0, len(header), total)
    head = (prefix + header).ljust(start, b"\0")
    return Frames(tuple(section.pieces_after(head)), total)


class _DataSection:
    """Collects the buffers of a message while its tree is written."""

    def __init__(self, compression: str | None, sparse: bool) -> None:
        self.nbytes = 0
        self._compression = compression
        self._sparse = sparse
        self._buffers: list[Any] = []

    def leaf(self, value: Any) -> Any:
        """The header's node for a leaf that JSON has no form for."""
        if type(value) is np.ndarray:
            return self._add(value)
        if isinstance(value, SparseArray):
            if not self._sparse:
                return self._add(to_dense(value))
            node = {"indices": self._add(value.indices), "values": self._add(value.values)}
            return {"$sparse": {"shape": list(value.shape), **node}}
        if type(value) is DeviceArray:
            return {"$device": [value.dtype, value.shape, value.place]}
        if is_array(value):
            return self._add(value)
        if type(value) is float:
            return {"$float": repr(value)}
        if type(value) is int:
            return {"$int": str(value)}
        return replace_leaves(to_plain(value), self)

    def mapping(self, replaced: dict[Any, Any]) -> dict[Any, Any]:
        """A mapping, marked as such where it would read as something else."""
        return {"$map": replaced} if len(replaced) == 1 and is_marked(replaced) else replaced

    def _add(self, array: Any) -> dict[str, Any]:
        name, shape, content = _wire_form(array)
        length = len(content)
        node = [name, shape, self.nbytes, length]
        if self._compression is not None:
            smaller = compress(content, self._compression)
            if len(smaller) < length:
                content, length = smaller, len(smaller)
                node[3:] = (length, self._compression)
        if length:
            padded = length + padding(length)
            self._buffers.append(
                content if length >= _GATHER_BELOW else content.ljust(padded, b"\0")
            )
            self.nbytes += padded
        return {"$array": node}

    def pieces_after(self, head: bytes) -> Iterator[bytes | memoryview]:
        """The message's pieces: small buffers, which are padded, are joined; large ones are not copied."""
        gathered: list[Any] = [head]
        for content in self._buffers:
            if len(content) <= _GATHER_BELOW:
                gathered.append(content)
            else:
                yield b"".join(gathered)
                yield content
                gathered = [_ZEROS[: padding(len(content))]]
        if gathered != [b""]:
            yield b"".join(gathered)


def _wire_form(array: Any) -> tuple[str, tuple[int, ...], Any]:
    """Dtype name, shape and bytes of an array."""
    # Copying a small array is cheaper than making a view of its bytes, and small ones are joined anyway.
    if type(array) is np.ndarray and array.nbytes < _GATHER_BELOW:
        name = NATIVE_NAMES.get(array.dtype)
        if name is not None:
            return name, array.shape, array.tobytes()
    wire = to_wire(array)
    content = wire.tobytes() if wire.nbytes < _GATHER_BELOW else raw_bytes(wire)
    return dtype_name(wire.dtype), wire.shape, content


def _read_prefix(view: memoryview) -> tuple[int, int]:
    if len(view) < PREFIX.size:
        raise _malformed(f"at least {PREFIX.size} bytes", f"{len(view)}")
    magic, version, reserved, header_nbytes, total = PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise _malformed("the magic bytes of a frames message", "others")
    if version != VERSION or reserved:
        raise DecodeError(
            f"This message has frames version {version}; version {VERSION} is understood here.",
            code="frames_version",
        )
    return header_nbytes, total


def decode_frames(
    buffer: Any,
    *,
    limits: Limits = DEFAULT_LIMITS,
    writable: bool = False,
    on_device: bool = False,
) -> Any:
    """The tree of a message. Its arrays are views into `buffer`, which must not change afterwards.

    They are read-only, unless the caller owns the buffer and asks for `writable` ones. Of those, arrays that
    share bytes with others and small ones of a large body are copies.

    Raises:
        DecodeError: not a sound message.
        LimitError: larger, deeper or with more fields than the limits allow.
    """
    view = memoryview(buffer).cast("B")
    limits.check_body(len(view))
    header_nbytes, total = _read_prefix(view)
    if total != len(view):
        raise _malformed(f"{total} bytes, as the message says", f"{len(view)}")
    start = PREFIX.size + header_nbytes
    # `total` is the length of the buffer by now, so the header and the data section lie inside of it, and no
    # slice below is shorter than it says.
    if start + padding(start) > total:
        raise _malformed(f"a header of {header_nbytes} bytes", "fewer")
    header = bytes(view[PREFIX.size : start])
    data = view[start + padding(start) :]
    budget = Budget(limits)
    reader = _Reader(data, budget, writable, on_device)
    return restore_leaves(parse_json(header, limits), reader, budget)


class _Reader:
    """Turns the `$` nodes of a header into what they stand for."""

    def __init__(self, data: memoryview, budget: Budget, writable: bool, on_device: bool) -> None:
        self._on_device = on_device
        self._data = data
        self._left = len(data)
        self._end = 0  # of the arrays so far
        self._budget = budget
        self._writable = writable

    def special(self, node: dict[str, Any], depth: int) -> Any:
        if len(node) != 1:
            return NOT_SPECIAL
        content = node.get("$array")
        if content is not None:
            return self._array(content)
        if not is_marked(node):
            return NOT_SPECIAL
        ((name, content),) = node.items()
        if name == "$map" and isinstance(content, dict):
            return restore_items(content, self, self._budget, depth)
        if name == "$sparse" and isinstance(content, dict):
            return self._sparse(content)
        if name == "$device" and self._on_device:
            return self._device_array(content)
        if name == "$float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if name == "$int" and isinstance(content, str):
            return _read_integer(content)
        raise _malformed("a node $array, $sparse, $float, $int or $map", f"{name[:20]!r}")

    def _array(self, content: Any) -> Any:
        if not isinstance(content, list) or len(content) not in (4, 5):
            raise _malformed("$array: [dtype, shape, offset, nbytes]", "something else")
        name, sizes, offset, stored, *compression = content
        shape, dtype = check_shape(sizes), dtype_from_name(name)
        nbytes = expected_bytes(shape, dtype)
        self._budget.take(nbytes)
        if type(offset) is not int or type(stored) is not int or offset < 0 or stored < 0:
            raise _malformed("offset and nbytes as integers ≥ 0", "others")
        if offset + stored > len(self._data) or offset % ALIGNMENT:
            raise _malformed(
                f"a buffer inside the {len(self._data)} bytes of data, at a multiple of {ALIGNMENT}",
                f"{stored} bytes at {offset}",
            )
        self._budget.expand_array(nbytes, dtype.itemsize, is_compressed=bool(compression))
        if compression:
            packed = self._data[offset : offset + stored]
            unpacked = decompress(packed, compression[0], nbytes)
            return from_wire(unpacked, shape, dtype, writable=self._writable)
        if stored != nbytes:
            raise _malformed(f"{nbytes} bytes for {name}{sizes}", f"{stored}")
        # A header may name the same bytes many times, and small ones are copied: what all arrays declare
        # beyond the data section is memory that the sender did not have to send. Only that excess counts as
        # expansion.
        self._left -= nbytes
        if self._left < 0:
            self._budget.expand(min(nbytes, -self._left))
        # Of two arrays that overlap, the one that is read later begins before the end of the other, so it is
        # seen here. One that merely comes out of order is copied for nothing, which our own encoder never
        # causes.
        is_shared, self._end = offset < self._end, max(self._end, offset + nbytes)
        array = from_wire(self._data, shape, dtype, offset, writable=self._writable)
        # Who writes to one array must not change another one, and who keeps a small one would keep the body.
        is_small = nbytes <= _GATHER_BELOW < len(self._data)
        return array.copy() if self._writable and (is_shared or is_small) else array

    def _device_array(self, content: Any) -> DeviceArray:
        if not isinstance(content, list) or len(content) != 3:
            raise _malformed("$device: [dtype, shape, place]", "something else")
        name, sizes, place = content
        return device_array_within(sizes, name, place, self._budget)

    def _sparse(self, content: dict[str, Any]) -> SparseArray:
        if content.keys() != {"shape", "indices", "values"}:
            raise _malformed("$sparse: shape, indices, values", "other keys")
        parts = []
        for part in ("indices", "values"):
            node = content[part]
            if not isinstance(node, dict) or node.keys() != {"$array"}:
                raise _malformed(f"an $array as {part} of $sparse", "something else")
            parts.append(self._array(node["$array"]))
        return decoded_sparse(content["shape"], *parts)


def _read_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _malformed("$int: decimal digits", "other text") from None


def _malformed(expected: str, found: str) -> DecodeError:
    return DecodeError(f"Expected {expected}; found {found}.", code="frames_malformed")

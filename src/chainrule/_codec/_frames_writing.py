"""Nested data with arrays to a message of frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from chainrule._codec._compression import compress
from chainrule._codec._copying import write_pieces
from chainrule._codec._dtypes import NATIVE_NAMES, dtype_name, raw_bytes, to_wire
from chainrule._codec._frames_layout import (
    ALIGNMENT,
    MAGIC,
    PREFIX,
    VERSION,
    is_marked,
    padding,
)
from chainrule._codec._lowering import is_array, lower, to_plain, write_json
from chainrule._codec._sparse import SparseArray, to_dense
from chainrule._codec._tables import table_of

_ZEROS = bytes(ALIGNMENT)
# Buffers below this size are gathered into one piece: a system call costs more than copying them.
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

    def write_into(self, target: Any) -> int:
        """Write the message at the start of a writable buffer (shared memory, a map, a bytearray).

        Returns:
            The number of bytes written, `nbytes`.
        """
        return write_pieces(target, self.pieces)

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
    """Collects the buffers of a message while its tree is lowered."""

    def __init__(self, compression: str | None, sparse: bool) -> None:
        self.nbytes = 0
        self._compression = compression
        self._sparse = sparse
        self._buffers: list[Any] = []

    def leaf(self, value: Any) -> Any:
        """The header's node for a leaf that JSON cannot carry as it is."""
        if type(value) is np.ndarray:
            return self._add(value)
        if isinstance(value, SparseArray):
            if not self._sparse:
                return self._add(to_dense(value))
            node = {"indices": self._add(value.indices), "values": self._add(value.values)}
            return {"$sparse": {"shape": list(value.shape), **node}}
        if is_array(value):
            return self._add(value)
        if type(value) is float:
            return {"$float": repr(value)}
        if type(value) is int:
            return {"$int": str(value)}
        return lower(to_plain(value), self)

    def mapping(self, lowered: dict[Any, Any]) -> dict[Any, Any]:
        """A mapping, marked as such where it would read as something else."""
        return {"$map": lowered} if len(lowered) == 1 and is_marked(lowered) else lowered

    def together(self, values: list[Any]) -> list[Any] | None:
        """The nodes of small arrays that are alike."""
        first = values[0]
        if type(first) is not np.ndarray or self._compression is not None:
            return None
        name, length = NATIVE_NAMES.get(first.dtype), first.nbytes
        is_small = name is not None and length < _GATHER_BELOW
        table = table_of(values, ALIGNMENT) if is_small else None
        if table is None:
            return None
        shape, begin = first.shape, self.nbytes
        self._buffers.append(table.tobytes())
        self.nbytes += table.nbytes
        offsets = range(begin, self.nbytes, table.shape[1])
        return [{"$array": [name, shape, offset, length]} for offset in offsets]

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
        """The message's pieces: small buffers, which are padded, gathered; large ones as they are."""
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
    # Copying a small array is cheaper than making a view of its bytes, and it is gathered anyway.
    if type(array) is np.ndarray and array.nbytes < _GATHER_BELOW:
        name = NATIVE_NAMES.get(array.dtype)
        if name is not None:
            return name, array.shape, array.tobytes()
    wire = to_wire(array)
    content = wire.tobytes() if wire.nbytes < _GATHER_BELOW else raw_bytes(wire)
    return dtype_name(wire.dtype), wire.shape, content

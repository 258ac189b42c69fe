"""A message of frames to nested data, its arrays read in place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from chainrule._codec._compression import decompress
from chainrule._codec._dtypes import (
    NATIVE_IS_WIRE,
    check_shape,
    dtype_from_name,
    expected_bytes,
    from_wire,
)
from chainrule._codec._frames_layout import (
    ALIGNMENT,
    MAGIC,
    PREFIX,
    VERSION,
    is_marked,
    padding,
)
from chainrule._codec._json_text import parse_json
from chainrule._codec._limits import DEFAULT_LIMITS, Budget, Limits
from chainrule._codec._raising import NOT_SPECIAL, raise_mapping_items, raise_tree
from chainrule._codec._sparse import SparseArray, decoded_sparse
from chainrule._codec._tables import common_layout, rows_in
from chainrule._errors import ChainruleError, DecodeError

_MAX_KNOWN_HEADER = 1024


def frames_length(prefix: Any) -> int:
    """The length of a message, from its first 24 bytes; for readers of a stream.

    Raises:
        DecodeError: not a message, or of another version.
    """
    return _read_prefix(memoryview(prefix))[1]


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


def decode_frames(buffer: Any, *, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The tree of a message. Its arrays are read-only views into `buffer`, which must stay as it is.

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
    if start + padding(start) > total:
        raise _malformed(f"a header of {header_nbytes} bytes", "fewer")
    header = bytes(view[PREFIX.size : start])
    data = view[start + padding(start) :].toreadonly()
    in_place = NATIVE_IS_WIRE and _is_aligned(data)
    if in_place and header_nbytes <= _MAX_KNOWN_HEADER:
        known = _known_tree(header, len(data), limits)
        if known is not None:
            return _fill(known, data)
    budget = Budget(limits)
    reader = _Reader(data, len(data), in_place, budget)
    return raise_tree(parse_json(header, limits), reader, budget)


@dataclass
class _Reader:
    """Turns the `$` nodes of a header into what they stand for."""

    data: Any
    nbytes: int
    in_place: bool
    budget: Budget

    def __post_init__(self) -> None:
        self._views: dict[np.dtype[Any], np.ndarray[Any, Any]] = {}

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
            self.budget.enter(len(content), depth)
            return raise_mapping_items(content, self, self.budget, depth)
        if name == "$sparse" and isinstance(content, dict):
            return self._sparse(content)
        if name == "$float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if name == "$int" and isinstance(content, str):
            return _read_integer(content)
        raise _malformed("a node $array, $sparse, $float, $int or $map", f"{name[:20]!r}")

    def together(self, nodes: list[Any]) -> list[Any] | None:
        alike = common_layout(nodes) if self.in_place else None
        if alike is None:
            return None
        name, sizes, offsets, stored = alike
        try:
            shape, dtype, nbytes = _layout(name, *sizes)
        except (TypeError, ChainruleError):
            return None
        sound = (
            0 < nbytes == stored
            and offsets.start % ALIGNMENT == offsets.step % ALIGNMENT == 0
            and 0 <= offsets.start < offsets[-1] <= self.nbytes - nbytes
        )
        if not (sound and shape and self.budget.try_take(nbytes, len(offsets))):
            return None
        return rows_in(self.data, shape, dtype, offsets)

    def _array(self, content: Any) -> Any:
        if not isinstance(content, list) or len(content) not in (4, 5):
            raise _malformed("$array: [dtype, shape, offset, nbytes]", "something else")
        name, sizes, offset, stored = content if len(content) == 4 else content[:4]
        try:
            shape, dtype, nbytes = _layout(name, *sizes)
        except TypeError:
            # Not hashable: no list of numbers, or no name, and one of these says which.
            check_shape(sizes)
            dtype_from_name(name)
            raise
        self.budget.take(nbytes)
        if type(offset) is not int or type(stored) is not int or offset < 0 or stored < 0:
            raise _malformed("offset and nbytes as integers ≥ 0", "others")
        if offset + stored > self.nbytes or offset % ALIGNMENT:
            raise _malformed(
                f"a buffer inside the {self.nbytes} bytes of data, at a multiple of {ALIGNMENT}",
                f"{stored} bytes at {offset}",
            )
        if len(content) == 5:
            self.budget.expand(nbytes)
            packed = self.data[offset : offset + stored]
            return from_wire(decompress(packed, content[4], nbytes), shape, dtype)
        if stored != nbytes:
            raise _malformed(f"{nbytes} bytes for {name}{sizes}", f"{stored}")
        if self.in_place and stored:
            return self._slice(shape, dtype, offset, stored)
        return from_wire(self.data, shape, dtype, offset)

    def _slice(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, nbytes: int
    ) -> np.ndarray[Any, Any]:
        """A part of the data section: of a thousand small arrays, slices are made fastest."""
        view, size = self._views.get(dtype), dtype.itemsize
        if view is None:
            view = self._views[dtype] = np.frombuffer(self.data, dtype, len(self.data) // size)
        part = view[offset // size : (offset + nbytes) // size]
        return part if len(shape) == 1 else part.reshape(shape)

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


class _Place(NamedTuple):
    """Where an array lies in the data section."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class _Surveyor(_Reader):
    """Finds the places of arrays, without data to read."""

    has_more = False  # than arrays as they are

    def together(self, nodes: list[Any]) -> list[Any] | None:
        return None

    def _array(self, content: Any) -> Any:
        found = super()._array(content)
        self.has_more |= type(found) is not _Place
        return found

    def _sparse(self, content: dict[str, Any]) -> Any:
        self.has_more = True

    def _slice(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, nbytes: int) -> Any:
        return _Place(shape, dtype, offset)


# Callers send the same few headers again and again, with other numbers behind them.
@lru_cache(maxsize=256)
def _known_tree(header: bytes, nbytes: int, limits: Limits) -> Any:
    """The tree of a header with a `_Place` for every array; `None` when it has to be read as others."""
    budget = Budget(limits)
    surveyor = _Surveyor(b"", nbytes, True, budget)
    try:
        tree = raise_tree(parse_json(header, limits), surveyor, budget)
    except (ChainruleError, TypeError, ValueError):
        return None  # it is compressed, or wrong, and reading it tells how
    return None if surveyor.has_more else tree


def _fill(node: Any, data: memoryview) -> Any:
    kind = type(node)
    if kind is _Place:
        return np.ndarray(node.shape, node.dtype, data, node.offset)
    if kind is dict:
        return {key: _fill(value, data) for key, value in node.items()}
    return [_fill(item, data) for item in node] if kind is list else node


# A body with many small arrays says the same of all of them. Typed, or `true` would pass for 1.
@lru_cache(maxsize=1024, typed=True)
def _layout(name: Any, *sizes: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and bytes of an array, from what a header says of it."""
    shape, dtype = check_shape(sizes), dtype_from_name(name)
    return shape, dtype, expected_bytes(shape, dtype)


def _is_aligned(view: memoryview) -> bool:
    # A complex128 is two float64 to the machine: no dtype on the wire needs more.
    return len(view) >= 8 and np.ndarray((), np.float64, view).flags.aligned


def _read_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _malformed("$int: decimal digits", "other text") from None


def _malformed(expected: str, found: str) -> DecodeError:
    return DecodeError(f"Expected {expected}; found {found}.", code="frames_malformed")

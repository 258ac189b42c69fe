"""Whole bodies in every format: nested data with arrays to bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pybase64

from chainrule._codec._arrays import (
    ArrayEncoder,
    Encoding,
    decode_array_within,
    is_encoded_array,
)
from chainrule._codec._binref_writing import BinrefWriter
from chainrule._codec._dtypes import DTYPE_NAMES
from chainrule._codec._frames_layout import FRAMES_MEDIA_TYPE
from chainrule._codec._frames_reading import decode_frames
from chainrule._codec._frames_writing import encode_frames
from chainrule._codec._grants import NO_GRANTS, Grants
from chainrule._codec._json_buffers import write_json_buffer
from chainrule._codec._json_text import parse_json
from chainrule._codec._limits import DEFAULT_LIMITS, Budget, Limits
from chainrule._codec._lowering import is_array, lower, to_plain, write_json
from chainrule._codec._raising import NOT_SPECIAL, raise_tree
from chainrule._codec._sparse import SparseArray, decoded_sparse, to_dense
from chainrule._errors import DecodeError, DefinitionError

_FRAMES = FRAMES_MEDIA_TYPE.removeprefix("application/")
_ENCODINGS: dict[str, Encoding] = {"json": "json", "json+base64": "base64", "json+binref": "binref"}
FORMATS: tuple[str, ...] = (*_ENCODINGS, _FRAMES)
"""The formats a body can have; the media type is `application/` and the format."""

# Dtypes whose arrays orjson writes itself, many times faster than through Python lists.
_ORJSON_DTYPES = frozenset(
    np.dtype(name) for name in DTYPE_NAMES if name not in ("bfloat16", "complex64", "complex128")
)
# Base64 texts from this size on are spliced into the finished JSON instead of passing through it.
_SPLICE_FROM = 16 * 1024
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def media_type_of(format: str) -> str:
    """The media type of a format, for `Content-Type`."""
    return f"application/{format}"


def encode_body(
    tree: Any,
    *,
    format: str = "json",
    compression: str | None = None,
    writer: BinrefWriter | None = None,
    sparse: bool = True,
) -> list[bytes | memoryview]:
    """Nested data with arrays as the pieces of a body; large arrays are copied as little as possible.

    Args:
        tree: mappings, sequences, models; leaves are arrays, `SparseArray`s and plain values.
        format: one of `FORMATS`, with or without `application/`.
        compression: `"lz4"` (every format but `json`) or `"zstd"` (frames).
        writer: where `json+binref` puts the bytes; the caller closes it once the body is complete.
        sparse: whether the reader understands sparse arrays; otherwise they are sent dense.

    Returns:
        Buffers which, one after the other, are the body.

    Raises:
        DefinitionError: unknown format, or a leaf that no format can carry.
        StorageError: `json+binref` could not be written.

    Example:
        >>> b"".join(encode_body({"n": 2}, format="json"))
        b'{"n":2}'
    """
    format = format.removeprefix("application/")
    if format == _FRAMES:
        return list(encode_frames(tree, compression=compression, sparse=sparse).pieces)
    if format not in _ENCODINGS:
        raise DefinitionError(
            f"Unknown format {format!r}; use one of {', '.join(FORMATS)}.", code="unknown_format"
        )
    return _JsonEncoder(_ENCODINGS[format], compression, writer, sparse).encode(tree)


class _JsonEncoder:
    """One JSON body. Large base64 texts stand as NUL, which JSON text never contains, until the end."""

    def __init__(
        self,
        encoding: Encoding,
        compression: str | None,
        writer: BinrefWriter | None,
        sparse: bool,
    ) -> None:
        self._sparse = sparse
        self._texts: list[bytes] = []
        self._encode_array = ArrayEncoder(
            encoding, compression, writer, _native_json_buffer, self._base64_text
        )

    def encode(self, tree: Any) -> list[bytes | memoryview]:
        text = write_json(tree, self, _OPTIONS)
        if not self._texts:
            return [text]
        between = text.split(b"\0")
        pieces: list[bytes | memoryview] = [between[0]]
        for base64, following in zip(self._texts, between[1:], strict=True):
            pieces += (base64, following)
        return pieces

    def leaf(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return self._encode_array(value)
        if isinstance(value, SparseArray):
            return (
                self._encode_sparse(value) if self._sparse else self._encode_array(to_dense(value))
            )
        if is_array(value):
            return self._encode_array(value)
        if type(value) is float:
            return orjson.Fragment(
                {"nan": b"NaN", "inf": b"Infinity"}.get(repr(value), b"-Infinity")
            )
        if type(value) is int:
            return orjson.Fragment(str(value))
        return lower(to_plain(value), self)

    def mapping(self, lowered: dict[Any, Any]) -> dict[Any, Any]:
        return lowered

    def together(self, values: list[Any]) -> None:
        return None

    def _encode_sparse(self, value: SparseArray) -> dict[str, Any]:
        return {
            "object_type": "sparse_array",
            "shape": list(value.shape),
            "indices": self._encode_array(value.indices),
            "values": self._encode_array(value.values),
        }

    def _base64_text(self, content: Any) -> Any:
        if len(content) < _SPLICE_FROM:
            return pybase64.b64encode_as_string(content)
        self._texts.append(pybase64.b64encode(content))
        return orjson.Fragment(b'"\0"')


def _native_json_buffer(array: Any) -> Any:
    if array.ndim and array.size and array.dtype in _ORJSON_DTYPES:
        return array
    return write_json_buffer(array)


def decode_body(
    buffer: Any,
    *,
    media_type: str = "application/json",
    grants: Grants | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Any:
    """The tree of a body; its arrays are read-only.

    Args:
        buffer: bytes or any other buffer. Arrays of a frames body are views into it.
        media_type: the `Content-Type`; parameters such as a charset are ignored.
        grants: folders and addresses that a `binref` may name; none by default.
        limits: bounds on size, number and nesting.

    Raises:
        DecodeError: the bytes are not what the media type says (`json_invalid`, `duplicate_key`,
            `frames_malformed`, …), an array is malformed, or the media type is unknown
            (`unsupported_media_type`). `path` says where.
        LimitError: over the limits.
        NotGrantedError: a file or address outside the grants.
    """
    subtype = _subtype(media_type)
    if subtype == _FRAMES:
        return decode_frames(buffer, limits=limits)
    if subtype not in _ENCODINGS:
        raise DecodeError(
            f"Bodies of {f'type {media_type[:80]!r}' if media_type else 'unknown type'} are not understood; "
            f"send Content-Type: application/json or {FRAMES_MEDIA_TYPE}.",
            code="unsupported_media_type",
        )
    limits.check_body(memoryview(buffer).nbytes)
    parsed = parse_json(buffer if isinstance(buffer, bytes) else bytes(buffer), limits)
    budget = Budget(limits)
    return raise_tree(parsed, _JsonReader(grants or NO_GRANTS, budget), budget)


@lru_cache(maxsize=256)
def _subtype(media_type: str) -> str:
    return media_type.split(";", 1)[0].strip().lower().removeprefix("application/")


class _JsonReader:
    """Turns encoded arrays, dense and sparse, into arrays."""

    def __init__(self, grants: Grants, budget: Budget) -> None:
        self._grants = grants
        self._budget = budget

    def special(self, node: dict[str, Any], depth: int) -> Any:
        if "data" not in node and "object_type" not in node:
            return NOT_SPECIAL
        if node.get("object_type") == "sparse_array":
            return self._sparse(node)
        if is_encoded_array(node):
            return decode_array_within(node, self._grants, self._budget)
        return NOT_SPECIAL

    def together(self, nodes: list[Any]) -> None:
        return None

    def _sparse(self, node: Mapping[str, Any]) -> SparseArray:
        if node.keys() != {"object_type", "shape", "indices", "values"}:
            raise DecodeError(
                "Expected object_type, shape, indices and values in a sparse array; found other keys.",
                code="sparse_malformed",
            )
        parts = []
        for part in ("indices", "values"):
            if not is_encoded_array(node[part]):
                raise DecodeError(
                    f"Expected an encoded array as {part} of a sparse array; found something else.",
                    code="sparse_malformed",
                )
            parts.append(decode_array_within(node[part], self._grants, self._budget))
        return decoded_sparse(node["shape"], *parts)

"""Whole bodies: the formats, which of them a caller asks for, and nested data to bytes and back in each.

`negotiate` follows the rules of the Tesseract server, so that its clients get what they expect: the ranges
of `Accept` are tried by falling `q`; `*/*` and `application/*` mean the configured format; any other type is
known by what follows its last slash; the first range that can be produced wins. Parameters: `gpu_transport`,
`compression`, and ours: `sparse=coo`, by which a caller says that it reads sparse arrays, and `room`, memory
on a GPU in which it wants the arrays that are there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import orjson
import pybase64

from chainrule._codec._arrays import (
    ArrayEncoder,
    DeviceArray,
    Encoding,
    decode_array_within,
    is_encoded_array,
    write_json_buffer,
)
from chainrule._codec._binrefs import NO_GRANTS, BinrefWriter, Grants
from chainrule._codec._compression import MAX_WINDOW_BYTES, load_zstandard
from chainrule._codec._declared import (
    DEFAULT_LIMITS,
    DTYPE_NAMES,
    Budget,
    Limits,
    expansion_too_large,
)
from chainrule._codec._frames import FRAMES_MEDIA_TYPE, decode_frames, encode_frames
from chainrule._codec._json_trees import (
    NOT_SPECIAL,
    is_array,
    parse_json,
    replace_leaves,
    restore_leaves,
    to_plain,
    write_json,
)
from chainrule._codec._sparse import SparseArray, decoded_sparse, to_dense
from chainrule._errors import DecodeError, DefinitionError, InputError

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
        if type(value) is DeviceArray:
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
        return replace_leaves(to_plain(value), self)

    def mapping(self, replaced: dict[Any, Any]) -> dict[Any, Any]:
        return replaced

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
    writable: bool = False,
    on_device: bool = False,
) -> Any:
    """The tree of a body; its arrays are read-only by default.

    Args:
        buffer: bytes or any other buffer. Arrays of a frames body are views into it.
        media_type: the `Content-Type`; parameters such as a charset are ignored.
        grants: folders and addresses that a `binref` may name; none by default.
        limits: bounds on size, number and nesting.
        writable: whether arrays can be written to. The buffer then belongs to the receiver.
        on_device: whether arrays may stay on a GPU; they are `DeviceArray`s then.

    Raises:
        DecodeError: the bytes are not what the media type says (`json_invalid`, `duplicate_key`,
            `frames_malformed`, …), an array is malformed, or the media type is unknown
            (`unsupported_media_type`). `path` says where.
        LimitError: over the limits.
        NotGrantedError: a file or address outside the grants.
    """
    subtype = _subtype(media_type)
    if subtype == _FRAMES:
        return decode_frames(buffer, limits=limits, writable=writable, on_device=on_device)
    if subtype not in _ENCODINGS:
        raise DecodeError(
            f"Bodies of {f'type {media_type[:80]!r}' if media_type else 'unknown type'} are not understood; "
            f"send Content-Type: application/json or {FRAMES_MEDIA_TYPE}.",
            code="unsupported_media_type",
        )
    limits.check_body(memoryview(buffer).nbytes)
    parsed = parse_json(buffer if isinstance(buffer, bytes) else bytes(buffer), limits)
    budget = Budget(limits)
    reader = _JsonReader(grants or NO_GRANTS, budget, writable, on_device)
    return restore_leaves(parsed, reader, budget)


@lru_cache(maxsize=256)
def _subtype(media_type: str) -> str:
    return media_type.split(";", 1)[0].strip().lower().removeprefix("application/")


class _JsonReader:
    """Turns encoded arrays, dense and sparse, into arrays."""

    def __init__(self, grants: Grants, budget: Budget, writable: bool, on_device: bool) -> None:
        self._grants = grants
        self._budget = budget
        self._how = {"writable": writable, "on_device": on_device}

    def special(self, node: dict[str, Any], depth: int) -> Any:
        if "data" not in node and "object_type" not in node:
            return NOT_SPECIAL
        if node.get("object_type") == "sparse_array":
            return self._sparse(node)
        if is_encoded_array(node):
            return self._array(node)
        return NOT_SPECIAL

    def _array(self, node: Mapping[str, Any]) -> Any:
        return decode_array_within(node, self._grants, self._budget, **self._how)

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
            parts.append(self._array(node[part]))
        return decoded_sparse(node["shape"], *parts)


# What the header of a zstd frame says that does not say its size, or says it wrongly.
_UNKNOWN_SIZES = (2**64 - 1, 2**64 - 2)


def expand_body(body: Any, encoding: str, limits: Limits) -> tuple[Any, Limits]:
    """Undo the `Content-Encoding` of a body, never past the limits.

    Args:
        body: as received.
        encoding: the header; empty for none.
        limits: on what the body stands for.

    Returns:
        The body, and the limits that are left for what is in it.

    Raises:
        DecodeError: unknown encoding (`unsupported_content_encoding`), or damaged (`bad_content_encoding`).
        LimitError: it expands past the limits (`expansion_too_large`).
    """
    if encoding in ("", "identity"):
        return body, limits
    max_bytes = min(limits.max_body_bytes, limits.max_expanded_bytes)
    if encoding == "gzip":
        content = _gunzip(body, max_bytes)
    elif encoding == "zstd":
        content = _expand_zstd_body(body, max_bytes)
    else:
        raise DecodeError(
            f"Content-Encoding {encoding[:40]!r} is not understood; send gzip, zstd or none.",
            code="unsupported_content_encoding",
        )
    if len(content) > max_bytes:
        raise expansion_too_large(None, max_bytes)
    return content, limits.after_expanding(len(content))


def _gunzip(body: Any, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        # One byte more than is allowed tells "too much" (for the caller, `expand_body`) from "exactly as
        # much", and no more than that is ever expanded. Whether the stream is complete is known only where it
        # has ended.
        content = stream.decompress(body, max_bytes + 1)
    except zlib.error:
        raise _not_sound("gzip") from None
    if len(content) <= max_bytes and (not stream.eof or stream.unused_data):
        raise _not_sound("gzip")
    return content


def _expand_zstd_body(body: Any, max_bytes: int) -> bytes:
    zstandard = load_zstandard()
    try:
        declared = zstandard.get_frame_parameters(body).content_size
        if declared not in _UNKNOWN_SIZES and declared > max_bytes:
            raise expansion_too_large(declared, max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        with decompressor.stream_reader(body) as reader:
            return reader.read(max_bytes + 1)
    except zstandard.ZstdError:
        raise _not_sound("zstd") from None


def _not_sound(encoding: str) -> DecodeError:
    return DecodeError(f"The body is not sound {encoding}.", code="bad_content_encoding")


_COMPRESSIONS = {"none": None, "lz4": "lz4", "zstd": "zstd"}
_HOST_ONLY = ("none",)


class NotAcceptableError(InputError):
    """No range of the `Accept` header can be produced: HTTP 406."""

    default_code: ClassVar[str] = "not_acceptable"
    http_status: ClassVar[int] = 406


@dataclass(frozen=True)
class Negotiated:
    """What a response will look like.

    Attributes:
        format: one of `FORMATS`.
        compression: `"lz4"`, `"zstd"` (frames only) or `None`.
        sparse: whether sparse arrays may be sent as such.
        gpu_transport: how arrays on a GPU are sent: `"cuda_ipc"`, or `"none"`, as those of the host.
        room: a place on a GPU for them, if the caller offers one.
    """

    format: str
    compression: str | None = None
    sparse: bool = False
    gpu_transport: str = "none"
    room: str = ""

    @property
    def media_type(self) -> str:
        """The `Content-Type` of the response."""
        return media_type_of(self.format)


@lru_cache(maxsize=256)  # callers say the same thing again and again
def negotiate(
    accept: str | None,
    *,
    default_format: str = "json",
    default_compression: str | None = None,
    formats: tuple[str, ...] = FORMATS,
    gpu_transports: tuple[str, ...] = _HOST_ONLY,
) -> Negotiated:
    """Choose a response's form.

    Args:
        accept: the `Accept` header; absent or empty means the defaults.
        default_format: the configured format.
        default_compression: the configured compression.
        formats: what can be produced here.
        gpu_transports: how arrays on a GPU can be sent from here.

    Raises:
        NotAcceptableError: nothing that was asked for can be produced; `details` lists what can.

    Example:
        >>> negotiate("application/xml, application/json+base64;q=0.5").media_type
        'application/json+base64'
    """
    defaults = {"compression": default_compression or "none", "gpu_transport": "none"}
    if accept is None or not accept.strip():
        return _produce(default_format, defaults, formats, gpu_transports) or Negotiated(
            default_format
        )
    for kind, parameters in _ranges(accept):
        wild = kind in ("*/*", "application/*")
        format = default_format if wild else kind.rsplit("/", 1)[-1]
        produced = _produce(format, {**defaults, **parameters}, formats, gpu_transports)
        if produced is not None:
            return produced
    raise NotAcceptableError(
        f"Nothing in Accept: {accept[:100]!r} can be produced here; available are "
        f"{', '.join(map(media_type_of, formats))}.",
        details={
            "available_formats": list(formats),
            "available_gpu_transports": list(gpu_transports),
            "available_compressions": ["none", "lz4"],
        },
    )


def _ranges(accept: str) -> list[tuple[str, dict[str, str]]]:
    """Media ranges with their parameters, best first; equal weights keep their order."""
    ranges = []
    for text in accept.split(","):
        kind, *rest = (part.strip() for part in text.split(";"))
        if not kind:
            continue
        parameters = {}
        for parameter in rest:
            name, _, value = parameter.partition("=")
            parameters[name.strip().lower()] = value.strip().strip('"').lower()
        ranges.append((_weight(parameters.pop("q", "1")), kind.lower(), parameters))
    ranges.sort(key=lambda entry: -entry[0])
    return [(kind, parameters) for _, kind, parameters in ranges]


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0


def _produce(
    format: str,
    parameters: dict[str, Any],
    formats: tuple[str, ...],
    gpu_transports: tuple[str, ...],
) -> Negotiated | None:
    is_frames = media_type_of(format) == FRAMES_MEDIA_TYPE
    compression = parameters["compression"]
    transport = parameters["gpu_transport"]
    if format not in formats or transport not in gpu_transports:
        return None
    if compression not in _COMPRESSIONS or (compression == "zstd" and not is_frames):
        return None
    sparse = is_frames or parameters.get("sparse") == "coo"
    room = parameters.get("room", "")
    return Negotiated(format, _COMPRESSIONS[compression], sparse, transport, room)

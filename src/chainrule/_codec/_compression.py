"""Compression, of single buffers (`compress`, `decompress`) and of whole bodies (`expand_body`).

A buffer is never expanded past the size that was declared, and a body never past the limits.

lz4 is the compression of Tesseract and always installed; zstd needs the package `zstandard` (extra `serve`).
"""

from __future__ import annotations

import zlib
from typing import Any

from chainrule._codec._limits import Limits, expansion_too_large
from chainrule._errors import DecodeError, DefinitionError

COMPRESSIONS = ("lz4", "zstd")
# What a zstd stream may ask its reader to remember: 128 MiB, the default of the `zstd` command.
_MAX_WINDOW_BYTES = 1 << 27
# What the header of a zstd frame says that does not say its size, or says it wrongly.
_UNKNOWN_SIZES = (2**64 - 1, 2**64 - 2)


def compress(data: Any, compression: str) -> bytes:
    """Compress a buffer as one frame that records its content size."""
    if compression == "lz4":
        import lz4.frame  # few bodies are compressed, and every import delays the command line

        return lz4.frame.compress(data, store_size=True)
    if compression == "zstd":
        return _zstandard().ZstdCompressor(level=1).compress(data)
    raise DefinitionError(
        f"Unknown compression {compression!r}; use one of {', '.join(COMPRESSIONS)}.",
        code="unknown_compression",
    )


def decompress(data: Any, compression: Any, nbytes: int) -> bytes | bytearray:
    """Expand a buffer that must yield exactly `nbytes`; at most one byte more is ever produced.

    Raises:
        DecodeError: damaged, of another length, followed by more data, or an unknown compression.
    """
    if compression == "lz4":
        content: bytes | bytearray | None = _expand_lz4(data, nbytes)
    elif compression == "zstd":
        content = _expand_zstd(data, nbytes)
    else:
        raise DecodeError(
            f"Expected a compression among {', '.join(COMPRESSIONS)}; found another value.",
            code="array_decode_error",
        )
    if content is None or len(content) != nbytes:
        raise DecodeError(
            f"Expected a {compression} frame of exactly {nbytes} bytes once expanded; "
            "found one that is longer, shorter, or followed by other data.",
            code="array_decode_error",
            details={"expected_nbytes": nbytes},
        )
    return content


def _expand_lz4(data: Any, nbytes: int) -> bytes | None:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        content = frame.decompress(data, max_length=nbytes + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _damaged("lz4") from error
    return content if frame.eof and not frame.unused_data else None


def _expand_zstd(data: Any, nbytes: int) -> bytearray | None:
    zstandard = _zstandard()
    content = bytearray(nbytes + 1)
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        with decompressor.stream_reader(data, read_across_frames=True) as reader:
            filled = _fill(reader, memoryview(content))
    except zstandard.ZstdError as error:
        raise _damaged("zstd") from error
    if filled != nbytes:
        return None
    del content[nbytes:]
    return content


def _fill(reader: Any, target: memoryview) -> int:
    filled = 0
    while filled < len(target):
        count = reader.readinto(target[filled:])
        if count == 0:
            break
        filled += count
    target.release()
    return filled


def _damaged(compression: str) -> DecodeError:
    return DecodeError(f"The buffer is not a sound {compression} frame.", code="array_decode_error")


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
        content = stream.decompress(body, max_bytes + 1)
    except zlib.error:
        raise _not_sound("gzip") from None
    if len(content) <= max_bytes and (not stream.eof or stream.unused_data):
        raise _not_sound("gzip")
    return content


def _expand_zstd_body(body: Any, max_bytes: int) -> bytes:
    zstandard = _zstandard()
    try:
        declared = zstandard.get_frame_parameters(body).content_size
        if declared not in _UNKNOWN_SIZES and declared > max_bytes:
            raise expansion_too_large(declared, max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        with decompressor.stream_reader(body) as reader:
            return reader.read(max_bytes + 1)
    except zstandard.ZstdError:
        raise _not_sound("zstd") from None


def _not_sound(encoding: str) -> DecodeError:
    return DecodeError(f"The body is not sound {encoding}.", code="bad_content_encoding")


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise DefinitionError(
            "zstd buffers need the package zstandard: pip install 'chainrule[serve]'.",
            code="missing_dependency",
        ) from None
    return zstandard

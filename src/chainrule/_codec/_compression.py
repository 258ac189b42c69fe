"""Compression of single buffers: never expands past the size that was declared.

lz4 is the compression of Tesseract and always installed; zstd needs the package `zstandard` (extra `serve`).
"""

from __future__ import annotations

from typing import Any

from chainrule._errors import DecodeError, DefinitionError, missing_dependency

COMPRESSIONS = ("lz4", "zstd")
# What a zstd stream may ask its reader to remember: 128 MiB, the default of the `zstd` command.
MAX_WINDOW_BYTES = 1 << 27


def compress(data: Any, compression: str) -> bytes:
    """Compress a buffer as one frame that records its content size."""
    if compression == "lz4":
        import lz4.frame  # few bodies are compressed, and every import delays the command line

        return lz4.frame.compress(data, store_size=True)
    if compression == "zstd":
        return load_zstandard().ZstdCompressor(level=1).compress(data)
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
    zstandard = load_zstandard()
    content = bytearray(nbytes + 1)
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
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


def load_zstandard() -> Any:
    """The package.

    Raises:
        CapabilityError: it is not installed (`missing_dependency`).
    """
    try:
        import zstandard
    except ImportError:
        raise missing_dependency("zstd buffers need", "zstandard", "'chainrule[serve]'") from None
    return zstandard

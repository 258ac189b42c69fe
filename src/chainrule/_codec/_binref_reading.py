"""Arrays that stay in a file: reading a reference `<path>[:<offset>[:<stored size>]]`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._codec._compression import decompress
from chainrule._codec._dtypes import expected_bytes, from_wire
from chainrule._codec._grants import Grants, is_url
from chainrule._errors import DecodeError

_REFERENCE = re.compile(
    r"(?P<path>.+?)(?::(?P<offset>\d{1,18})(?::(?P<size>\d{1,18}))?)?", re.DOTALL
)


@dataclass(frozen=True)
class Reference:
    """Where the bytes of an array lie: a path or address, an offset, and a size when compressed."""

    path: str
    offset: int = 0
    stored_nbytes: int | None = None

    @classmethod
    def parse(cls, text: Any) -> Reference:
        """Read the text form; the shortest path that leaves only numbers behind it wins."""
        match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DecodeError(
                "Expected a file reference like 'folder/name.bin:0'; found "
                f"{'other text' if isinstance(text, str) else type(text).__name__}.",
                code="array_decode_error",
            )
        size = match["size"]
        return cls(match["path"], int(match["offset"] or 0), None if size is None else int(size))

    def __str__(self) -> str:
        size = "" if self.stored_nbytes is None else f":{self.stored_nbytes}"
        return f"{self.path}:{self.offset}{size}"


def read_binref(
    reference: Reference,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    compression: Any,
    grants: Grants,
) -> np.ndarray[Any, Any]:
    """Read exactly the bytes of one array.

    Raises:
        NotGrantedError: the reference lies outside the grants.
        DecodeError: no such file, or it is too short.
    """
    nbytes = expected_bytes(shape, dtype)
    stored = nbytes if compression is None else reference.stored_nbytes
    if stored is None:
        raise DecodeError(
            "A compressed file reference needs its stored size: '<path>:<offset>:<size>'.",
            code="array_decode_error",
        )
    content = _read(reference, stored, grants)
    if compression is not None:
        content = decompress(content, compression, nbytes)
    return from_wire(content, shape, dtype)


def _read(reference: Reference, nbytes: int, grants: Grants) -> Any:
    if is_url(reference.path):
        # Imported here: it brings in TLS and HTTP, which few need.
        from chainrule._codec._remote import read_remote

        return read_remote(grants.check_url(reference.path), reference.offset, nbytes)
    descriptor = grants.open_input(reference.path)
    try:
        available = os.fstat(descriptor).st_size - reference.offset
        if available < nbytes:
            raise _too_short(nbytes, available)
        # Read, not mapped: a file that shrinks under a mapping kills the process.
        content = np.empty(nbytes, np.uint8)
        if _read_into(descriptor, content.data, reference.offset) != nbytes:
            raise _too_short(nbytes, available)
        return content
    finally:
        os.close(descriptor)


def _read_into(descriptor: int, target: memoryview, offset: int) -> int:
    filled = 0
    while filled < len(target):
        count = os.preadv(descriptor, [target[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


def _too_short(nbytes: int, available: int) -> DecodeError:
    return DecodeError(
        f"The referenced file has {max(available, 0)} bytes from the offset on, {nbytes} are needed.",
        code="array_decode_error",
        details={"expected_nbytes": nbytes, "nbytes": max(available, 0)},
    )

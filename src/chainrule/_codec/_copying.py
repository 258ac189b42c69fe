"""Bytes for another process, written piece after piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def write_pieces(target: Any, pieces: Iterable[bytes | memoryview]) -> int:
    """Write bytes, piece after piece, at the start of a buffer; the number of bytes."""
    view, position = memoryview(target), 0
    for piece in pieces:
        end = position + len(piece)
        view[position:end] = piece
        position = end
    return position

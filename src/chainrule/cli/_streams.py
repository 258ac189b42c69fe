"""Standard output is for the result alone.

While a component is loaded and run, file descriptor 1 points to standard error: what author code or the
libraries below it print cannot mix with the result, not even from C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["ResultStream", "result_stream"]


class ResultStream:
    """The real standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write the result."""
        with open(self._descriptor, "wb", closefd=False) as stream:
            for piece in pieces:
                stream.write(piece)


@contextmanager
def result_stream() -> Iterator[ResultStream]:
    """Send everything that is printed to standard error, and give the real standard output."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield ResultStream(saved)
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)

"""Standard output is for the result alone.

While a component is loaded and run, `sys.stdout` and file descriptor 1 lead to standard error: what author
code or the libraries below it print cannot mix with the result, not even from C.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

__all__ = ["ResultStream", "result_stream"]


class ResultStream:
    """The real standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write the result; leave quietly, as other commands do, where its reader has left already."""
        try:
            with open(self._descriptor, "wb", closefd=False) as stream:
                for piece in pieces:
                    stream.write(piece)
        except BrokenPipeError:
            raise SystemExit(128 + signal.SIGPIPE) from None


@contextmanager
def result_stream() -> Iterator[ResultStream]:
    """Send everything that is printed to standard error, and give the real standard output."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield ResultStream(saved)
    finally:
        os.dup2(saved, 1)
        os.close(saved)

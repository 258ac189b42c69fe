"""Standard output is for the result alone, and text of others cannot command the terminal.

While a component is loaded and run, `sys.stdout` and file descriptor 1 lead to standard error: what author
code or the libraries below it print cannot mix with the result, not even from C.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

from chainrule._errors import InputError, StorageError
from chainrule._visible import visible


def reserve_streams() -> None:
    """Give the descriptors 0, 1 and 2 to nobody else where the shell has closed them (`>&-`).

    The next file or connection that is opened would get such a number, and what is printed would go there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives


def write_text(text: str) -> None:
    """Write a result for people to standard output.

    Raises:
        InputError: it is closed (`output_closed`).
        StorageError: it cannot be written to.
    """
    with _write_errors():
        sys.stdout.write(visible(text))
        sys.stdout.flush()


def write_error(text: str) -> None:
    """Write something beside the result to standard error."""
    sys.stderr.write(visible(text))


class ResultStream:
    """The real standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write the result as it is."""
        with _write_errors(), open(self._descriptor, "wb", closefd=False) as stream:
            for piece in pieces:
                stream.write(piece)

    def write_text(self, text: str) -> None:
        """Write a result for people."""
        self.write([visible(text).encode()])


@contextmanager
def result_stream() -> Iterator[ResultStream]:
    """Send everything that is printed to standard error, and give the real standard output."""
    if sys.stdout is None:
        raise _closed()
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield ResultStream(saved)
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def _write_errors() -> Iterator[None]:
    """Leave quietly, as other commands do, where the reader has left already; else say what is wrong."""
    if sys.stdout is None:
        raise _closed()
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes what is left at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise StorageError(
            f"The result cannot be written to standard output: {error.strerror}.",
            code="output_failed",
        ) from error


def _closed() -> InputError:
    return InputError(
        "Standard output is closed, so the result cannot be written. Redirect it to a file, or to /dev/null.",
        code="output_closed",
    )

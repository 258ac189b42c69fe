"""Standard output is for the result alone; what the author prints is shown and kept.

Everything happens at the level of file descriptors, so it holds for C libraries and child processes too.
Only the command line does this: it owns its process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

__all__ = ["copied_to", "result_descriptor"]

_LAST_WORDS_S = 2.0


@contextmanager
def result_descriptor() -> Iterator[int]:
    """Send descriptor 1 to standard error, and give a descriptor of the real standard output.

    `sys.stdout` and `sys.stderr` follow: in test runners and notebooks they lead elsewhere.
    """
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            open(1, "w", buffering=1, closefd=False) as stdout,
            open(2, "w", buffering=1, closefd=False) as stderr,
            redirect_stdout(stdout),
            redirect_stderr(stderr),
        ):
            yield real
    finally:
        os.dup2(real, 1)
        os.close(real)


@contextmanager
def copied_to(file: Path) -> Iterator[None]:
    """Copy what is written to standard output and standard error into a file, and pass it on."""
    source, sink = os.pipe()
    real = os.dup(1), os.dup(2)
    # A child process that lives on may hold the pipe open; nobody waits for it.
    copier = threading.Thread(target=_copy, args=(source, os.dup(2), file), daemon=True)
    copier.start()
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, original in zip((1, 2), real, strict=True):
            os.dup2(original, descriptor)
            os.close(original)
        copier.join(_LAST_WORDS_S)


def _copy(source: int, terminal: int, file: Path) -> None:
    with file.open("wb", buffering=0) as log:
        while piece := os.read(source, 1 << 16):
            log.write(piece)
            os.write(terminal, piece)
    os.close(source)
    os.close(terminal)

"""Standard output is for the result alone.

It happens at the level of file descriptors, so it holds for C libraries and child processes too. Only the
command line does this: it owns its process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


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

"""A process that author code forked does not become a second worker.

`os.fork` returns twice. A child that comes back from the author's function holds the same connection as its
parent: its answer would be taken for the parent's, and its parent's for the answer to the next call. So the
child ends where it leaves the author's code. `os._exit` runs no handlers and flushes no buffers: they belong
to its parent.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def only_here(function: Callable[[], T]) -> T:
    """What a function of the author's gives, in the process that called it; a child of it ends."""
    process = os.getpid()
    try:
        return function()
    finally:
        if os.getpid() != process:
            _end(sys.exception())


def _end(error: BaseException | None) -> None:
    if error is not None:
        with contextlib.suppress(Exception):
            traceback.print_exception(error)
            sys.stderr.flush()
    os._exit(0 if error is None else 1)

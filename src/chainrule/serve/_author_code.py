"""What surrounds author code, wherever it runs: loading, forks, progress and output.

A process that author code forked does not become a second worker (`only_here`). `os.fork` returns twice: a
child that comes back from the author's function holds the same connection as its parent, so its answer would
be taken for the parent's, and its parent's for the answer to the next call. So the child ends where it leaves
the author's code. `os._exit` runs no handlers and flushes no buffers: they belong to its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

from chainrule._progress import listening
from chainrule._same_host import Message, send_message
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import log_handler
from chainrule.serve._calls import Watcher

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


def show_log(config: ComponentConfig) -> None:
    """Write Chainrule's own log records; the author's loggers stay as the author sets them.

    In the format for machines the root logger speaks too, so that every line is an object.
    """
    handler = log_handler(config.log_format)
    log = logging.getLogger("chainrule")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    if config.log_format == "json":
        logging.getLogger().addHandler(handler)


@contextlib.contextmanager
def following(connection: socket.socket, message: Message) -> Iterator[None]:
    """While the call of a job is answered, send its progress and output to the server.

    Args:
        connection: to the server.
        message: the call; the last of its descriptors is where output goes.
    """
    if "watch" not in message.header:
        yield
        return

    def emit(fraction: float, text: str) -> None:
        send_message(connection, {"progress": [fraction, text[:1000]]})

    with _output_to(message.descriptors[-1]), listening(emit, whole_process=True):
        yield


@contextlib.contextmanager
def following_in_thread(watcher: Watcher, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The same on a thread of the server. Its output is what it logs: all threads share what they print to.

    Args:
        watcher: who hears of it.
        loop: on which it hears of it.
    """

    def emit(fraction: float, text: str) -> None:
        loop.call_soon_threadsafe(watcher.on_progress, fraction, text)

    handler = _ThisThread(watcher)
    logging.getLogger().addHandler(handler)
    try:
        with listening(emit):
            yield
    finally:
        logging.getLogger().removeHandler(handler)


class _ThisThread(logging.Handler):
    """Passes on what the thread that made it logs."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._watcher.write_log(f"{record.levelname} {record.getMessage()}\n".encode())


@contextlib.contextmanager
def _output_to(descriptor: int) -> Iterator[None]:
    """Let everything that is printed go to a descriptor, also by C; the descriptor is closed at the end."""
    with contextlib.suppress(AttributeError):  # the author may have put something else in its place
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _flush()
    saved = os.dup(2)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    try:
        yield
    finally:
        _flush()
        for stream in (1, 2):
            os.dup2(saved, stream)
        os.close(saved)


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)

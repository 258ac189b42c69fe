"""A call that is followed: its progress and its output go to whoever watches, as they come."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator

from chainrule._samehost import Message, send_message
from chainrule.runtime.internal import listening
from chainrule.serve._calls import Watcher


@contextlib.contextmanager
def following(connection: socket.socket, message: Message) -> Iterator[None]:
    """While a call that somebody follows is answered, tell the server about it.

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

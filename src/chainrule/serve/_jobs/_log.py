"""What a job prints: into a file of bounded size, and line by line to whoever listens."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from chainrule._whole_files import open_private

_MAX_BYTES = 10 << 20
_MAX_LINE = 8192
# A process that the component started and left behind may hold the pipe open; nobody waits for that.
_PATIENCE_S = 0.5


class JobLog:
    """The output of one job.

    Args:
        path: file that keeps it, up to 10 MiB.
        on_line: called with the number of every line (from 1) and its text, on a thread of this log.
        pass_on: where the bytes go as well, for example the log of the server.
    """

    def __init__(
        self, path: Path, on_line: Callable[[int, str], None], pass_on: Callable[[bytes], None]
    ) -> None:
        self._path = path
        self._on_line = on_line
        self._pass_on = pass_on
        self._written = 0
        self._lines = 0
        self._rest = b""
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> int:
        """A descriptor for a process to write to, until it or `sent` closes it."""
        reading, self._descriptor = os.pipe()
        self._thread = threading.Thread(
            target=self._copy, args=(reading,), name="chainrule-job-log", daemon=True
        )
        self._thread.start()
        return self._descriptor

    def sent(self) -> None:
        """The process has its own copy of the descriptor now."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def write(self, chunk: bytes) -> None:
        """Add some output. A disk that is full costs lines, not jobs."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._pass_on(chunk)
            with contextlib.suppress(OSError):
                self._keep(chunk)
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                self._publish(self._rest + line)
                self._rest = b""
            self._rest = (self._rest + rest)[:_MAX_LINE]

    def close(self) -> None:
        """Wait until everything that was printed has arrived."""
        self.sent()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        with self._lock:
            if self._rest:
                self._publish(self._rest)
                self._rest = b""

    def _copy(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as source:
            while chunk := source.read(1 << 16):
                self.write(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = _MAX_BYTES - self._written
        if room <= 0:
            return
        if len(chunk) > room:
            chunk = chunk[:room] + b"\n[the rest is not kept]\n"
        with open(self._path, "ab", buffering=0, opener=open_private) as file:
            file.write(chunk)
        self._written += len(chunk)

    def _publish(self, line: bytes) -> None:
        self._lines += 1
        self._on_line(self._lines, line[:_MAX_LINE].decode("utf-8", "replace"))

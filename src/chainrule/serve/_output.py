"""What author code prints, in a file that cannot grow for ever."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from chainrule._errors import StorageError


class OutputLog:
    """A log of bounded size: when it is full it becomes `<name>.1`, and a new one begins.

    Safe between threads. A disk that is full costs log lines, not calls.

    Args:
        path: the file.
        max_bytes: size at which it is rotated; at most twice this is kept.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, *, max_bytes: int = 10 << 20) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the server
        except OSError as error:
            raise StorageError(
                f"The log file {self._path} cannot be written: {error.strerror}."
            ) from error

    def follow(self) -> int:
        """A descriptor for a process to write to; what it writes goes to the log until it closes it."""
        reading, writing = os.pipe()
        threading.Thread(
            target=self._copy, args=(reading,), name="chainrule-log", daemon=True
        ).start()
        return writing

    def _copy(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as source:
            while chunk := source.read(1 << 16):
                with contextlib.suppress(OSError):
                    self.write(chunk)

    def write(self, chunk: bytes) -> None:
        """Append something, in a new file when this one is full."""
        with self._lock:
            if self._file.tell() + len(chunk) > self._max_bytes:
                self._file.close()
                os.replace(self._path, f"{self._path}.1")
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            self._file.write(chunk)

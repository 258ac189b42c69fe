"""Named pieces of bytes in a folder that several processes use at once, bounded in size.

A piece is there whole or not at all. Whoever writes makes room first, by removing what has not been used for
longest.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from chainrule._whole_files import write_whole


class SharedFolder:
    """A folder as a bounded store. A disk that is full or gone costs pieces, not calls.

    Args:
        folder: created when it is missing; for one user.
        max_bytes: of all pieces together.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        self._unseen = max_bytes  # bytes that may have been written since somebody looked
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read(self, name: str) -> bytes | None:
        """A piece, which counts as used now; `None` when it is not there."""
        path = self._folder / name
        try:
            content = path.read_bytes()
            os.utime(path)
            return content
        except OSError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Keep a piece, unless it is larger than everything that may be kept."""
        if len(content) > self._max_bytes:
            return
        with contextlib.suppress(OSError):
            self._unseen += len(content)
            if self._unseen > self._max_bytes // 16:
                self._make_room(self._max_bytes - len(content))
                self._unseen = 0
            write_whole(self._folder / name, [content])

    def _make_room(self, max_bytes: int) -> None:
        found = []
        for entry in os.scandir(self._folder):
            with contextlib.suppress(OSError):  # another process may have removed it
                facts = entry.stat()
                found.append((facts.st_mtime_ns, facts.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= max_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size

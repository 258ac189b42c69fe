"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def open_private(path: str, flags: int) -> int:
    """An opener (see `open`) of files that only this user may read."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path for a file, which gets its name when the block ends; after an error it is removed.

    It is in the same folder, hidden, with an ending by which files of killed processes can be found.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the folder is gone, or cannot be written any more
            temporary.unlink(missing_ok=True)
        raise


def write_whole(
    path: Path, pieces: Iterable[Any], *, durable: bool = False, private: bool = False
) -> None:
    """Write bytes, piece after piece, as a whole file.

    Args:
        path: of the file.
        pieces: its content.
        durable: whether it survives a loss of power once this returns.
        private: whether only this user may read it.
    """
    opener = open_private if private else None
    with whole_file(path) as temporary, open(temporary, "xb", opener=opener) as file:
        file.writelines(pieces)
        if durable:
            file.flush()
            os.fsync(file.fileno())

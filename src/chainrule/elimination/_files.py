"""Small files that are kept between processes: where they are, and writing them whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

from chainrule import _folders

__all__ = ["cache_folder", "keep_newest", "write_atomically"]

_log = logging.getLogger(__name__)


def cache_folder(variable: str, name: str) -> Path | None:
    """The folder that an environment variable names, or the user's.

    `None` when the variable is empty, or when it is not set and the user has no home.
    """
    chosen = os.environ.get(variable)
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        return _folders.cache_folder(name)
    except FileNotFoundError:
        return None


def keep_newest(folder: Path, pattern: str, count: int) -> None:
    """Remove the oldest files of a folder beyond a number. Others may be doing the same."""
    files = list(folder.glob(pattern))
    if len(files) > count:
        for path in sorted(files, key=_age)[: len(files) - count]:
            with contextlib.suppress(OSError):
                path.unlink()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def write_atomically(path: Path, content: bytes) -> bool:
    """Write beside the file and rename, so that no reader sees a part; whether that could be done.

    A cache that cannot be written is no error: it is only not there the next time.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        _log.debug("%s could not be written: %s", path, error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True

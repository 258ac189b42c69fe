"""Small files that are kept between processes: where they are, and writing them whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from chainrule import _folders
from chainrule._whole_files import write_whole

__all__ = ["cache_folder", "keep_newest", "write_to_cache"]

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


def write_to_cache(path: Path, content: bytes) -> bool:
    """Write a file so that no reader sees a part; whether that could be done.

    A cache that cannot be written is no error: it is only not there the next time.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [content])
    except OSError as error:
        _log.debug("%s could not be written: %s", path, error)
        return False
    return True

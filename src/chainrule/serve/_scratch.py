"""Temporary folders that do not pile up: those of servers that were killed are removed by the next one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

__all__ = ["make_scratch"]

_NAME = re.compile(r"chainrule-(?P<pid>\d+)-")
_MEMORY = Path("/dev/shm")


def make_scratch(purpose: str, *, in_memory: bool = False) -> Path:
    """A new folder that only this user can read.

    Args:
        purpose: part of its name.
        in_memory: keep it in memory, where the system has such a place.
    """
    place = Path(tempfile.gettempdir())
    if in_memory and os.access(_MEMORY, os.W_OK):
        place = _MEMORY
    _remove_left_behind(place)
    return Path(tempfile.mkdtemp(prefix=f"chainrule-{os.getpid()}-{purpose}-", dir=place))


def _remove_left_behind(place: Path) -> None:
    for entry in os.scandir(place):
        match = _NAME.match(entry.name)
        if match is None or Path(f"/proc/{match['pid']}").exists() or not _is_ours(entry):
            continue
        shutil.rmtree(entry.path, ignore_errors=True)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return (
            entry.is_dir(follow_symlinks=False)
            and Path("/proc/self").exists()
            and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
        )
    except OSError:
        return False

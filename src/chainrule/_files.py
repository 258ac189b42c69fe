"""Files of this user: written as a whole, in folders that last, or in temporary ones that do not pile up.

Temporary folders of processes that were killed are removed by the next process (`Scratch`). A process holds a
lock (`flock`) on its folder for as long as it lives, and the kernel gives the lock back however the process
ends. So a folder that can be locked belongs to no process. A process id would not say that: in another
container the same number is another process, or none, and a server in a container is always number 1.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chainrule._errors import StorageError


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


def state_folder(*parts: str) -> Path:
    """For what has to outlast this process: `$XDG_STATE_HOME/chainrule/…`, by default in `~/.local/state`."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not given.is_absolute():  # the convention says to ignore relative paths
        try:
            given = Path.home() / ".local/state"
        except RuntimeError as error:
            raise FileNotFoundError(
                "This user has no home folder for files of Chainrule. Set XDG_STATE_HOME to an absolute path."
            ) from error
    return given.joinpath("chainrule", *parts)


_PREFIX = "chainrule-scratch-"
_MEMORY = Path("/dev/shm")


class Scratch:
    """A new folder that only this user can read, until it is removed or its process ends.

    Args:
        purpose: part of its name.
        in_memory: keep it in memory, where the system has such a place.

    Attributes:
        path: of the folder.

    Raises:
        StorageError: there is no place for temporary files (`no_scratch_folder`).
    """

    def __init__(self, purpose: str, *, in_memory: bool = False) -> None:
        try:
            place = _MEMORY if in_memory and os.access(_MEMORY, os.W_OK) else tempfile.gettempdir()
            _remove_left_behind(Path(place))
            self.path, self._lock = _make_locked(purpose, Path(place))
        except OSError as error:
            raise StorageError(
                f"There is no folder for temporary files ({error.strerror}). Make /tmp writable, or name "
                "another folder in the variable TMPDIR.",
                code="no_scratch_folder",
            ) from error

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make_locked(purpose: str, place: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-", dir=place))
        lock = _try_lock(path)
        # Another process may have found the folder before it was locked, and removed it.
        if lock is not None and path.exists():
            return path, lock
        if lock is not None:
            os.close(lock)


def _remove_left_behind(place: Path) -> None:
    for entry in os.scandir(place):
        if not entry.name.startswith(_PREFIX) or not _is_ours(entry):
            continue
        lock = _try_lock(Path(entry.path))
        if lock is not None:
            shutil.rmtree(entry.path, ignore_errors=True)
            os.close(lock)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of a folder; `None` when a process has it, or the folder is gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
    return None


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        is_folder = entry.is_dir(follow_symlinks=False)
        return is_folder and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False

"""Arrays that go to a file: whole files appear under their names, or nothing does.

Arrays are appended to one temporary file, `.<uuid>.bin.part`, and get their final name when the writer is
closed. A process that dies in between leaves no file under a final name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from chainrule._codec._binref_array import BinrefArray
from chainrule._codec._binref_reading import Reference
from chainrule._codec._compression import compress
from chainrule._codec._dtypes import dtype_name, raw_bytes, to_wire
from chainrule._errors import StorageError

_MAX_FILE_BYTES = 100 * (1 << 20)
_STORAGE_CODES = {
    errno.ENOSPC: "storage_full",
    errno.EDQUOT: "storage_full",
    errno.EROFS: "storage_read_only",
    errno.EACCES: "storage_read_only",
    errno.EPERM: "storage_read_only",
}


class BinrefWriter:
    """Writes arrays below an output folder and returns references to them.

    The folder is created at the first write. Leaving the `with` block gives the files their final
    names; leaving it by an exception removes them.

    Args:
        folder: the granted output folder; references are relative to it.
        run: name of the subfolder for this run (`run_<id>` over HTTP), or empty for the folder itself.
        max_file_size: a new file is started once the current one is larger than this.
        compression: `"lz4"`, `"zstd"` or `None`.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with BinrefWriter(folder) as writer:
        ...         reference = writer.write(np.arange(3.0))
        ...     reference.load().tolist()
        [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        run: str = "",
        max_file_size: int = _MAX_FILE_BYTES,
        compression: str | None = None,
    ) -> None:
        self._root = Path(folder)
        self._run = run
        self._max_file_size = max_file_size
        self._compression = compression
        self._file: IO[bytes] | None = None
        self._offset = 0
        self._pending: list[tuple[Path, Path]] = []

    def write(self, array: Any, *, compression: str | None = None) -> BinrefArray:
        """Append one array.

        Raises:
            StorageError: the folder is full, read-only or gone; what was written so far is removed.
        """
        wire = to_wire(array)
        name = dtype_name(wire.dtype)
        compression = compression or self._compression
        content: Any = raw_bytes(wire)
        if compression is not None:
            content = compress(content, compression)
        try:
            reference = self._append(content, stored=compression is not None)
        except OSError as error:
            self.abort()
            raise _storage_error(error) from error
        return BinrefArray(reference, wire.shape, name, compression, self._root)

    def close(self) -> None:
        """Give every file its final name. Closing twice is fine."""
        try:
            self._finish_file()
            while self._pending:
                temporary, final = self._pending[-1]
                os.replace(temporary, final)
                self._pending.pop()
        except OSError as error:
            self.abort()
            raise _storage_error(error) from error

    def abort(self) -> None:
        """Remove what has not been given its final name."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        for temporary, _ in self._pending:
            with contextlib.suppress(OSError):  # the folder is gone or has become read-only
                temporary.unlink()
        self._pending.clear()

    def __enter__(self) -> BinrefWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _append(self, content: Any, *, stored: bool) -> Reference:
        if self._file is not None and self._offset > self._max_file_size:
            self._finish_file()
        file = self._file or self._start_file()
        offset = self._offset
        _write_all(file, memoryview(content))
        self._offset += len(content)
        name = self._pending[-1][1].name
        path = f"{self._run}/{name}" if self._run else name
        return Reference(path, offset, len(content) if stored else None)

    def _start_file(self) -> IO[bytes]:
        folder = self._root / self._run
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4()}.bin"
        temporary = folder / f".{name}.part"
        self._pending.append((temporary, folder / name))
        self._file = open(temporary, "xb", buffering=0)  # noqa: SIM115 - lives as long as the writer
        self._offset = 0
        return self._file

    def _finish_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _write_all(file: IO[bytes], content: memoryview) -> None:
    while content.nbytes:
        content = content[file.write(content) :]


def _storage_error(error: OSError) -> StorageError:
    code = _STORAGE_CODES.get(error.errno or 0, "storage_failed")
    return StorageError(
        f"Results could not be written to the output folder ({os.strerror(error.errno or 0)}). Nothing "
        "was left behind. Make room, or ask for an inline format such as json+base64.",
        code=code,
    )

"""Arrays that a component leaves in files, in the folder of the run that is under way."""

from __future__ import annotations

from typing import Any

from chainrule import _codec
from chainrule.runtime._runs import current_run, get_config

_MAX_FILE_BYTES = 100 * (1 << 20)


class BinrefWriter:
    """Writes arrays to files below the component's `output_path` and returns references to them.

    A reference can be returned for any array field: with the format `json+binref` it is sent as it is.
    Every array becomes a file of its own, complete under its name when `write` returns.

    Args:
        max_file_size: accepted for the sake of existing components.
        compression: `"lz4"`, `"zstd"` or `None`.
    """

    def __init__(
        self, max_file_size: int = _MAX_FILE_BYTES, compression: str | None = None
    ) -> None:
        self._compression = compression

    def write(self, arr: Any) -> _codec.BinrefArray:
        """Write one array.

        Raises:
            StorageError: the folder is full, read-only or gone.
        """
        run = current_run.get()
        root = get_config().output_path
        folder = "" if run is None else str(run.folder.relative_to(root))
        with _codec.BinrefWriter(
            root, run="" if folder == "." else folder, compression=self._compression
        ) as writer:
            return writer.write(arr)


class BinrefArray(_codec.BinrefArray):
    """A reference to an array in a file below the component's `output_path`."""

    @classmethod
    def write(cls, arr: Any, compression: str | None = None) -> _codec.BinrefArray:
        """Write an array to a file of its own and refer to it."""
        return BinrefWriter(compression=compression).write(arr)

    @classmethod
    def from_file(  # type: ignore[override]
        cls,
        path: str,
        shape: tuple[int, ...],
        dtype: str,
        offset: int = 0,
        compression: str | None = None,
        compressed_size: int | None = None,
    ) -> _codec.BinrefArray:
        """Refer to bytes that are already in a file; the path is relative to `output_path`.

        Raises:
            NotGrantedError: the path leads out of the folder.
            DecodeError: the file is missing or too short.
        """
        return _codec.BinrefArray.from_file(
            path,
            shape,
            dtype,
            folder=get_config().output_path,
            offset=offset,
            compression=compression,
            compressed_size=compressed_size,
        )

"""An array that is known by its place in a file and is read only when somebody asks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule._codec._binref_reading import Reference, read_binref
from chainrule._codec._dtypes import dtype_from_name, expected_bytes
from chainrule._codec._grants import Grants


@dataclass(frozen=True)
class BinrefArray:
    """A reference to an array in a file below the output folder.

    It can be returned for any array field. With the format `json+binref` the reference itself is sent;
    other formats load the array first.

    Attributes:
        reference: path below `folder`, offset, and stored size when compressed.
        shape: shape of the array.
        dtype: wire name of its dtype.
        compression: `"lz4"`, `"zstd"` or `None`.
        folder: the folder that the path is relative to.
    """

    reference: Reference
    shape: tuple[int, ...]
    dtype: str
    compression: str | None
    folder: Path

    @classmethod
    def from_file(
        cls,
        path: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        folder: str | os.PathLike[str],
        offset: int = 0,
        compression: str | None = None,
        compressed_size: int | None = None,
    ) -> BinrefArray:
        """Refer to bytes that are already in a file below `folder`.

        Raises:
            NotGrantedError: the path leads out of the folder.
            DecodeError: the file is missing or too short.
        """
        array = cls(
            Reference(path, offset, compressed_size), tuple(shape), dtype, compression, Path(folder)
        )
        needed = compressed_size
        if needed is None:
            needed = expected_bytes(array.shape, dtype_from_name(dtype))
        size = Grants(input_dir=array.folder).input_file(path).stat().st_size
        if size < offset + needed:
            array.load()  # raises, with the sizes
        return array

    @property
    def buffer(self) -> str:
        """The reference as text, as it stands in `data.buffer` of an encoded array."""
        return str(self.reference)

    def load(self) -> np.ndarray[Any, Any]:
        """Read the array; the result is read-only."""
        return read_binref(
            self.reference,
            self.shape,
            dtype_from_name(self.dtype),
            self.compression,
            Grants(input_dir=self.folder),
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.load(), dtype=dtype, copy=copy)

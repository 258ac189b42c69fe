"""Results that are kept under the content of the inputs they belong to.

`content_name` gives nested data a name: equal names, equal data, in every process and on every machine.
Arrays are hashed whole, with a cryptographic hash, because nothing compares the data afterwards. A file
counts by its path, size and time of change. Data whose content cannot be seen (a lazy sequence, an object of
the author's) has no name, and nothing is kept for it.

An array on a GPU has no name either.

`content_digest` is a key for arrays that are compared afterwards: fast, and of a sample of the bytes of large
ones. `hash_parts` hashes files and code.

`SharedFolder` keeps bytes under names in a folder that several processes use at once, bounded in size. An
entry is there whole or not at all. A process that writes makes room first, by removing the entries that have
not been used for longest.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import xxhash

from chainrule._codec import SparseArray
from chainrule._device import is_on_device
from chainrule._files import write_whole
from chainrule._paths import join_path
from chainrule._trees import is_arraylike, iterate_leaves

WHOLE_BYTES = 1 << 20
"""Arrays up to this size are digested whole."""
BLOCK_BYTES = 1 << 12
"""Larger ones in blocks of this size, `WHOLE_BYTES` in total, spread evenly."""
_PLAIN = (str, int, float, complex, bool, bytes, type(None), date, time, timedelta, UUID)


def content_name(*trees: Any) -> str | None:
    """The name of some trees together, or `None` when one of them cannot be named.

    Example:
        >>> content_name({"x": np.ones(2)}) == content_name({"x": np.ones(2)})
        True
        >>> content_name({"x": object()}) is None
        True
    """
    digest = hashlib.blake2b(digest_size=20)
    for tree in trees:
        # Empty containers are hashed as leaves: `{}` is not `{"a": []}`.
        leaves = [(join_path(*at), leaf) for at, leaf in iterate_leaves(tree, _is_empty)]
        digest.update(f"{len(leaves)}:".encode())
        for path, leaf in sorted(leaves, key=itemgetter(0)):
            parts = _parts(leaf)
            if parts is None:
                return None
            for part in (path.encode(errors="surrogatepass"), *parts):
                # With their lengths, so that no two sequences of parts are the same bytes.
                digest.update(f"{len(part)}:".encode())
                digest.update(part)
    return digest.hexdigest()


def _is_empty(node: Any) -> bool:
    return isinstance(node, (Mapping, list, tuple)) and not node


def _parts(leaf: Any) -> list[Any] | None:
    """What a leaf's content is made of; every part has a length and is hashed."""
    if isinstance(leaf, (Mapping, list, tuple)):
        return [b"mapping" if isinstance(leaf, Mapping) else b"sequence"]
    if isinstance(leaf, _PLAIN):
        return [type(leaf).__name__.encode(), repr(leaf).encode()]
    if is_on_device(leaf):
        return None
    if is_arraylike(leaf):
        array = np.asarray(leaf)
        kind = f"{array.dtype.name}{array.shape}".encode()
        if array.dtype.hasobject:
            return None
        return [b"array", kind, bytes_of(array).data]
    if isinstance(leaf, SparseArray):
        parts = [_parts(part) for part in (leaf.indices, leaf.values)]
        return [b"sparse", repr(leaf.shape).encode(), *(p for part in parts for p in part or ())]
    if isinstance(leaf, enum.Enum):
        return [b"enum", repr(leaf.value).encode()]
    if isinstance(leaf, Path):
        return _file_parts(leaf)
    return None


def _file_parts(path: Path) -> list[Any] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return [b"file", str(path).encode(), f"{facts.st_size}:{facts.st_mtime_ns}".encode()]


def content_digest(arrays: Sequence[Any]) -> bytes:
    """A digest of dtypes, shapes and (a sample of) the bytes of some arrays, in bounded time.

    Of arrays on a GPU only dtype and shape count: to read them would be to wait for them.
    """
    digest = xxhash.xxh3_128()
    for given in arrays:
        if is_on_device(given):
            digest.update(f"{given.dtype}{tuple(given.shape)}".encode())
            continue
        array = np.asarray(given)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        content = bytes_of(array)
        if content.size <= WHOLE_BYTES:
            digest.update(content.data)
            continue
        count = WHOLE_BYTES // BLOCK_BYTES
        for start in np.linspace(0, content.size - BLOCK_BYTES, count, dtype=np.int64):
            digest.update(content[start : start + BLOCK_BYTES].data)
    return digest.digest()


def bytes_of(array: Any) -> np.ndarray:
    """The bytes of an array, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def hash_parts(parts: Iterable[tuple[str, bytes]]) -> str:
    """A hash over named pieces of content; lengths are hashed too, so that pieces cannot run together."""
    digest = hashlib.blake2b(digest_size=16)
    for name, content in parts:
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


class SharedFolder:
    """A folder as a bounded store. On a disk that is full or gone nothing is kept, and no call fails.

    Args:
        folder: created when it is missing; for one user.
        max_bytes: of all entries together.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        self._unseen = (
            max_bytes  # bytes that may have been written since the folder was last measured
        )
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read(self, name: str) -> bytes | None:
        """An entry, which counts as used now; `None` when it is not there."""
        path = self._folder / name
        try:
            content = path.read_bytes()
            os.utime(path)
            return content
        except OSError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Keep an entry, unless it alone is larger than `max_bytes`."""
        if len(content) > self._max_bytes:
            return
        with contextlib.suppress(OSError):
            # The folder is measured when this process has written a sixteenth of the bound since it last was,
            # and before its first entry. So n processes together exceed the bound by at most n sixteenths.
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

"""Paths into nested data. See `chainrule.compat._mirror`."""

from __future__ import annotations

from typing import Any

from chainrule import _lru_cache, _paths
from chainrule._errors import PathError
from chainrule._paths import Key, join_path
from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.tree_transforms", "path_to_index_op")


class LRUCache(_lru_cache.LRUCache[Any, Any]):
    """A bounded mapping that forgets the least recently used entry, one entry by default."""

    def __init__(self, maxsize: int = 1) -> None:
        super().__init__(maxsize)

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self)


def split_path(path: str) -> list[str]:
    """The segments of a path as they are written: `["a", "[0]", "{b.c}"]`."""
    return [join_path(segment) for segment in _paths.split_path(path)]


def path_to_index_op(path: str) -> tuple[str, int | str]:
    """How one segment of a path goes on: `("seq", index)`, `("dict", key)` or `("getattr", name)`.

    Raises:
        PathError: not exactly one segment; a `ValueError`.
    """
    segments = _paths.split_path(path)
    if len(segments) != 1:
        raise PathError(f"Expected one segment of a path; found {path!r}.", code="path_malformed")
    segment = segments[0]
    if isinstance(segment, int):
        return "seq", segment
    return ("dict", str(segment)) if isinstance(segment, Key) else ("getattr", segment)

"""A bounded cache that threads may share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A bounded mapping that forgets the least recently used entry. Safe between threads.

    Args:
        maxsize: number of entries kept; 0 keeps nothing.
        max_bytes: when given, also bounds the sum of `size_of(value)`.
        size_of: the size of a value in bytes.
    """

    def __init__(
        self,
        maxsize: int,
        *,
        max_bytes: int | None = None,
        size_of: Callable[[V], int] = lambda value: 0,
    ) -> None:
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._bytes = 0
        self._entries: OrderedDict[K, V] = OrderedDict()
        # What makes a value runs without it. `size_of` of what is forgotten runs while it is held, so it must
        # not come back to this cache.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self._maxsize} entries, {self._bytes} bytes)"

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of a key, which becomes the most recently used one."""
        with self._lock:
            try:
                self._entries.move_to_end(key)
            except KeyError:
                return default
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Keep a value, unless it alone is over `max_bytes`; the least recently used ones are forgotten."""
        size = self._size_of(value)
        with self._lock:
            self._discard(key)
            if self._max_bytes is not None and size > self._max_bytes:
                return
            self._entries[key] = value
            self._bytes += size
            while self._is_over():
                self._discard(next(iter(self._entries)))

    def pop(self, key: K, default: V | None = None) -> V | None:
        """Forget a key and return its value."""
        with self._lock:
            value = self._entries.get(key, default)
            self._discard(key)
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def _discard(self, key: K) -> None:
        if key in self._entries:
            self._bytes -= self._size_of(self._entries.pop(key))

    def _is_over(self) -> bool:
        too_large = self._max_bytes is not None and self._bytes > self._max_bytes
        return bool(self._entries) and (len(self._entries) > self._maxsize or too_large)

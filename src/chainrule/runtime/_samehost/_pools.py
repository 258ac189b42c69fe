"""Segments that are used again: fresh memory costs more than writing to it."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict

from chainrule.runtime._samehost._segments import Segment

__all__ = ["SegmentCache", "SegmentPool"]


class SegmentPool:
    """Segments of our own. Not for use between threads.

    Args:
        prefix: start of the keys, unique among the pools that one receiver hears of.
        max_idle_bytes: idle segments beyond this are given back to the system.
    """

    def __init__(self, prefix: str, *, max_idle_bytes: int = 256 << 20) -> None:
        self._prefix = prefix
        self._max_idle_bytes = max_idle_bytes
        self._numbers = itertools.count()
        self._idle: list[Segment] = []
        self._lent: dict[str, Segment] = {}

    def take(self, nbytes: int) -> Segment:
        """A segment with room for `nbytes`; the smallest idle one that is not far too large."""
        fitting = [s for s in self._idle if nbytes <= s.size <= max(8 * nbytes, 1 << 20)]
        if fitting:
            segment = min(fitting, key=lambda s: s.size)
            self._idle.remove(segment)
        else:
            segment = Segment.create(f"{self._prefix}.{next(self._numbers)}", nbytes)
        self._lent[segment.key] = segment
        return segment

    def give_back(self, key: str) -> str | None:
        """Take back a segment that nobody reads any more. Unknown keys are fine.

        Returns:
            The key of a segment that went to the system to make room, for receivers to forget.
        """
        segment = self._lent.pop(key, None)
        if segment is None:
            return None
        self._idle.append(segment)
        if sum(s.size for s in self._idle) > self._max_idle_bytes:
            return self._idle.pop(0).key
        return None

    def forget(self, key: str) -> None:
        """Never use a lent segment again: somebody still reads it."""
        self._lent.pop(key, None)


class SegmentCache:
    """Segments of others, mapped once and kept under their keys; the least recently used go first."""

    def __init__(self, *, max_bytes: int = 1 << 30) -> None:
        self._max_bytes = max_bytes
        self._segments: OrderedDict[str, Segment] = OrderedDict()

    def get(self, key: str, descriptor: int | None) -> Segment | None:
        """The segment of a key; `descriptor` has to be there when it is not known yet."""
        if descriptor is not None and key in self._segments:
            os.close(descriptor)
        elif descriptor is not None:
            self._segments[key] = Segment.open(key, descriptor)
            self._shrink()
        if key in self._segments:
            self._segments.move_to_end(key)
        return self._segments.get(key)

    def forget(self, key: str) -> None:
        """Drop a segment; arrays that still use it keep its memory."""
        self._segments.pop(key, None)

    def forget_all(self, prefix: str) -> None:
        """Drop every segment whose key starts so."""
        for key in [key for key in self._segments if key.startswith(prefix)]:
            del self._segments[key]

    def __contains__(self, key: str) -> bool:
        return key in self._segments

    def _shrink(self) -> None:
        while (
            len(self._segments) > 1
            and sum(s.size for s in self._segments.values()) > self._max_bytes
        ):
            self._segments.popitem(last=False)

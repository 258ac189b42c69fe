"""Threads that copy large arrays together; see `_copying`."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

__all__ = ["Team"]


class Team:
    """Threads that each copy a part, for one caller at a time."""

    def __init__(self, size: int) -> None:
        self._helpers = [_Helper() for _ in range(size)]
        self._busy = threading.Lock()

    def copy(self, target: np.ndarray, source: np.ndarray) -> bool:
        """Copy a vector; `False`, and nothing is done, if there is nobody to help."""
        # When Python ends, other threads no longer run.
        if not self._helpers or sys.is_finalizing() or not self._busy.acquire(blocking=False):
            return False
        count = len(self._helpers) + 1
        first, *cuts = (target.size * part // count for part in range(1, count + 1))
        parts = [_Part(target[a:b], source[a:b]) for a, b in itertools.pairwise((first, *cuts))]
        tasks = list(zip(self._helpers, parts, strict=True))
        try:
            for helper, part in tasks:
                helper.parts.put(part)
            target[:first] = source[:first]
            _wait_for(parts)
        except BaseException:
            _abandon(tasks)
            raise
        finally:
            self._busy.release()
        return True


class _Part:
    """What one helper copies."""

    def __init__(self, target: np.ndarray, source: np.ndarray) -> None:
        self.arrays = [target, source]
        self.is_wanted = True
        self.is_over = False
        self.signal: SimpleQueue[None] = SimpleQueue()


class _Helper(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="chainrule-copy", daemon=True)
        self.parts: SimpleQueue[_Part] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            part = self.parts.get()
            if part.is_wanted and not part.is_over:
                part.arrays[0][...] = part.arrays[1]
            part.arrays.clear()  # who lends memory counts the references to it
            part.is_over = True
            part.signal.put(None)


def _wait_for(parts: Sequence[_Part]) -> None:
    for part in parts:
        while not part.is_over:
            part.signal.get()


def _abandon(tasks: Sequence[tuple[_Helper, _Part]]) -> None:
    """Wait until no helper touches the memory, which is lent, however often somebody presses Ctrl-C."""
    parts = [part for _, part in tasks]
    while not all(part.is_over for part in parts):
        with contextlib.suppress(KeyboardInterrupt):
            for helper, part in tasks:
                part.is_wanted = False
                helper.parts.put(part)  # it may not have come so far
            _wait_for(parts)

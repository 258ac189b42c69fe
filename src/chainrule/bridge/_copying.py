"""Large results, copied by several threads.

XLA owns the memory of a program's results, so what a component returns is copied there, and for a large array
the call is that copy. One core does not use the memory bus of a machine with many: on 16 cores of a Xeon four
threads copy 4 MB in a third of the time of one. On two cores waking the other one costs what it saves.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Sequence
from functools import cache
from queue import SimpleQueue

import numpy as np

__all__ = ["copy_into"]

_LARGE_BYTES = 1 << 21
_THREADS = 4


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """`target[...] = source` for arrays of one shape, by several threads where that is faster."""
    plain = (
        target.nbytes < _LARGE_BYTES
        or target.dtype != source.dtype  # a conversion warns, or not, as the calling thread says
        or not (target.flags.c_contiguous and source.flags.c_contiguous)
    )
    if plain or not _team().copy(target.reshape(-1), source.reshape(-1)):
        target[...] = source


class _Team:
    """Threads that each copy a part, for one caller at a time."""

    def __init__(self, size: int) -> None:
        self._helpers = [_Helper() for _ in range(size)]
        self._busy = threading.Lock()

    def copy(self, target: np.ndarray, source: np.ndarray) -> bool:
        """Copy a vector; `False`, and nothing is done, if there is nobody to help."""
        if not self._helpers or not self._busy.acquire(blocking=False):
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


@cache
def _team() -> _Team:
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    return _Team(_THREADS - 1 if (processors or 1) >= _THREADS else 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.cache_clear)  # threads stay behind

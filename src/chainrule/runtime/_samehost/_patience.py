"""Waiting for the other side of a quick conversation without going to sleep."""

from __future__ import annotations

import os
import select
import time

__all__ = ["Patience"]

_MOMENT_S = 0.00015


class Patience:
    """Looks again and again for a moment, where the last wait was no longer than that.

    Who sleeps has to be woken, and a processor that has nothing else to do falls asleep as well: on a virtual
    machine waking both takes as long as a small call. Whoever waits for longer, or has one processor only,
    goes to sleep at once, and between two looks everybody else who has work to do goes first.
    """

    def __init__(self) -> None:
        self._may_look = len(os.sched_getaffinity(0)) > 1
        self._was_short = False
        self._start = 0.0

    def look(self, poll: select.poll) -> list[tuple[int, int]]:
        """Begin to wait: what became ready within a moment, if that is worth a try."""
        self._start = now = time.perf_counter()
        ready: list[tuple[int, int]] = []
        if self._was_short:
            end = now + _MOMENT_S
            while not (ready := poll.poll(0)) and time.perf_counter() < end:
                os.sched_yield()
        return ready

    def end(self) -> None:
        """The wait is over."""
        waited_s = time.perf_counter() - self._start
        self._was_short = self._may_look and waited_s < _MOMENT_S

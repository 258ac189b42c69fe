"""Waiting for the other side of a quick conversation without going to sleep."""

from __future__ import annotations

import os
import select
import time

__all__ = ["Patience"]

# As long as copying a body of some megabytes takes.
_MOMENT_S = 0.001
_LONGEST_PAUSE = 64


class Patience:
    """Looks again and again for a moment before it sleeps, as long as that is worth it.

    Who sleeps has to be woken, and a processor that has nothing else to do falls asleep as well: on a virtual
    machine waking both takes as long as a small call. Between two looks everybody else who has work to do
    goes first. After a moment in vain the next wait is slept through, then two, then four, up to 64; who has
    one processor never looks.
    """

    def __init__(self) -> None:
        self._may_look = len(os.sched_getaffinity(0)) > 1
        self._to_sleep_through = 0
        self._pause = 1
        self._start = 0.0

    def look(self, poll: select.poll) -> list[tuple[int, int]]:
        """Begin to wait: what became ready within a moment, if that is worth a try."""
        self._start = now = time.perf_counter()
        ready: list[tuple[int, int]] = []
        if self._may_look and not self._to_sleep_through:
            end = now + _MOMENT_S
            while not (ready := poll.poll(0)) and time.perf_counter() < end:
                os.sched_yield()
        return ready

    def end(self) -> None:
        """The wait is over."""
        if time.perf_counter() - self._start < _MOMENT_S:
            self._to_sleep_through, self._pause = 0, 1
        elif self._to_sleep_through:
            self._to_sleep_through -= 1
        else:
            self._to_sleep_through = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

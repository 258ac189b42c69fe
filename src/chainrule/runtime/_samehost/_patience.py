"""Waiting for the other side of a quick conversation without going to sleep."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time

from chainrule._processors import processors

__all__ = ["Patience"]

# As long as copying a body of some megabytes takes.
_MOMENT_S = 0.001
_LONGEST_PAUSE = 64
# A turn of somebody else between two looks: ten times what these take alone, and no more than a small call.
_SHORTEST_TURN_S, _LONGEST_TURN_S = 5e-6, 1e-4
_FEW_TURNS = 4
_SETTLED_S = 1.0


class Patience:
    """Looks again and again for a moment before it sleeps, as long as that is worth it.

    Who sleeps has to be woken, and a processor that has nothing else to do falls asleep as well: on a virtual
    machine waking both takes as long as a small call. Between two looks everybody else who has work to do
    goes first. After a moment in vain the next wait is slept through, then two, then four, up to 64; who has
    one processor never looks.

    Args:
        steps_aside: leave a processor on which others have short turns between our looks. Linux wakes who
            is sent something where the sender runs, and leaves both there while neither sleeps: with small
            calls they are twice as fast side by side. With large ones, which take long turns, they are not.
    """

    def __init__(self, *, steps_aside: bool = False) -> None:
        self._may_look = processors() > 1
        self._to_sleep_through = 0
        self._pause = 1
        self._start = 0.0
        self._steps_aside = steps_aside
        self._turns = 0
        self._turns_to_bear = _FEW_TURNS
        self._stepped_at = -_SETTLED_S

    def look(self, poll: select.poll) -> list[tuple[int, int]]:
        """Begin to wait: what became ready within a moment, if that is worth a try."""
        self._start = before = now = time.perf_counter()
        ready: list[tuple[int, int]] = []
        if self._may_look and not self._to_sleep_through:
            end = now + _MOMENT_S
            while not (ready := poll.poll(0)) and now < end:
                os.sched_yield()
                before, now = now, time.perf_counter()
            if self._steps_aside:
                self._watch_turns(now, _SHORTEST_TURN_S < now - before < _LONGEST_TURN_S)
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

    def _watch_turns(self, now: float, was_turn: bool) -> None:
        """Step aside when several waits in a row have ended with a turn of somebody else."""
        self._turns = self._turns + 1 if was_turn else 0
        if self._turns < self._turns_to_bear:
            return
        # Where all processors are taken it does not help, and is tried ever more rarely.
        has_helped = now - self._stepped_at > _SETTLED_S
        self._turns_to_bear = _FEW_TURNS if has_helped else 2 * self._turns_to_bear
        self._turns, self._stepped_at = 0, now
        _leave_processor()


def _leave_processor() -> None:
    """Go on on another processor than this one, among those that this thread may use."""
    allowed = os.sched_getaffinity(0)
    others = allowed - {ctypes.CDLL(None).sched_getcpu()}
    with contextlib.suppress(OSError):  # there is no other, or we may not choose
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)

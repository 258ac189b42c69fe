"""Start now, wait later: independent calls of remote components in one compiled program overlap.

Where a program has several calls, each is lowered to two: `StartCall` notes the work and returns a ticket,
`FinishCall` takes the ticket and hands out the results. The work that was started last waits for its
`FinishCall`, which does it in place; it moves to a thread as soon as another call starts or is waited for.
The only call of a program has no `StartCall`.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypedDict

import numpy as np

from chainrule._jaxpr._overlapping import NOT_STARTED
from chainrule._lru_cache import LRUCache
from chainrule.bridge._failures import report_failure
from chainrule.bridge._host import HostCall, compute

# A program that fails half-way never collects its tickets.
_MAX_STARTED = 4096
_MAX_BYTES = 1 << 30
_tickets = itertools.count()


class _Work:
    """One started call."""

    def __init__(self, call: HostCall, operands: list[np.ndarray]) -> None:
        self._call = call
        self._operands = operands
        self._future: Future[list[np.ndarray]] | None = None
        self._lock = threading.Lock()
        self._is_taken = False

    @property
    def nbytes(self) -> int:
        """Of its operands; what is too large for all to be kept is kept alone."""
        return min(_MAX_BYTES, sum(operand.nbytes for operand in self._operands))

    def move_to_thread(self) -> None:
        """Begin in a thread, unless somebody is already doing it."""
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                self._future = _pool().submit(self._call.evaluate, self._operands)

    def fill(self, results: list[np.ndarray]) -> None:
        """Hand out what came of it; done here and now if nobody has begun."""
        with self._lock:
            future, self._is_taken = self._future, True
        try:
            if future is None:
                compute(self._call.call, self._operands, results)
            else:
                for value, result in zip(future.result(), results, strict=True):
                    result[...] = value
        finally:
            self._operands.clear()  # an exception keeps the frames, and they keep this


_started: LRUCache[int, _Work] = LRUCache(
    _MAX_STARTED, max_bytes=_MAX_BYTES, size_of=lambda work: work.nbytes
)
_latest: LRUCache[str, _Work] = LRUCache(1)


def _move_latest_to_thread() -> None:
    waiting = _latest.pop("work")
    if waiting is not None:
        waiting.move_to_thread()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(32, thread_name_prefix="chainrule-overlap")


class StartCall:
    """Starts a call on copies of the operands; its one result is the ticket."""

    def __init__(self, call: HostCall) -> None:
        self._call = call
        self.targets: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._call})"

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Never raises; returns an error's text."""
        work = _Work(self._call, [operand.copy() for operand in operands])
        ticket = next(_tickets) % 2**31
        _started.put(ticket, work)
        _move_latest_to_thread()
        _latest.put("work", work)
        results[0][...] = ticket
        return None


class FinishCall:
    """Hands out the results of a started call."""

    def __init__(self, call: HostCall) -> None:
        self._call = call
        self.targets: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._call})"

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Never raises; returns an error's text."""
        ticket = int(operands.pop())
        work = None if ticket == NOT_STARTED else _started.pop(ticket)
        if work is None:  # never started, or so long ago that it was forgotten
            return self._call.run(operands, results)
        try:
            if _latest.get("work") is work:
                _latest.pop("work")
            else:
                _move_latest_to_thread()
            work.fill(results)
        except BaseException as error:
            return report_failure(error, repr(self._call.call), operands, results)
        return None


class Pair(TypedDict):
    """The two halves of a call."""

    start: StartCall
    finish: FinishCall


def overlapping_pair(call: HostCall) -> Pair:
    """The two halves of a call, the same ones every time."""
    known = call.call.site.host_functions
    return known.setdefault(("overlap", call), Pair(start=StartCall(call), finish=FinishCall(call)))

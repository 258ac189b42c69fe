"""Start now, wait later: independent calls of remote components in one compiled program overlap.

`StartCall` hands the work to a thread and returns a ticket; `FinishCall` takes the ticket and waits.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypedDict

import numpy as np

from chainrule._trees import LRUCache
from chainrule.bridge._failures import report_failure
from chainrule.bridge._host import HostCall

__all__ = ["FinishCall", "StartCall", "overlapping_pair"]

_MAX_STARTED = 4096  # a program that fails half-way never collects its tickets
_started: LRUCache[int, Future[list[np.ndarray]]] = LRUCache(_MAX_STARTED)
_tickets = itertools.count()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(32, thread_name_prefix="chainrule-overlap")


class StartCall:
    """Starts a call on copies of the operands; its one result is the ticket."""

    def __init__(self, call: HostCall) -> None:
        self._call = call

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Never raises; returns an error's text."""
        ticket = next(_tickets) % 2**31
        copies = [operand.copy() for operand in operands]
        _started.put(ticket, _pool().submit(self._call.evaluate, copies))
        results[0][...] = ticket
        return None


class FinishCall:
    """Waits for a started call and hands out its results."""

    def __init__(self, call: HostCall) -> None:
        self._call = call

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> str | None:
        """Never raises; returns an error's text."""
        future = _started.pop(int(operands[0]))
        try:
            if future is None:
                raise RuntimeError(f"{self._call!r} was started too long ago: its result is gone.")
            for value, result in zip(future.result(), results, strict=True):
                result[...] = value
        except BaseException as error:
            return report_failure(error, repr(self._call))
        return None


class Pair(TypedDict):
    """The two halves of a call."""

    start: StartCall
    finish: FinishCall


def overlapping_pair(call: HostCall) -> Pair:
    """The two halves of a call, the same ones every time."""
    known = call.call.site.host_functions
    return known.setdefault(("overlap", call), Pair(start=StartCall(call), finish=FinishCall(call)))

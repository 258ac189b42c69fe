"""The jobs that wait for one component."""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from operator import itemgetter

from chainrule.serve._jobs._live import LiveJob
from chainrule.serve._service import Service


class Lane:
    """Jobs of one component, first come first served.

    Each has the number of its arrival, and the queue is in order of these numbers. So a place in the queue is
    found by bisection, also after jobs in the middle were cancelled: a list of jobs asks for many places.

    Attributes:
        service: the component.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._queue: list[tuple[int, LiveJob]] = []
        self._numbers: dict[str, int] = {}
        self._arrivals = itertools.count()
        self._has_some = asyncio.Event()
        self._is_held = False

    def __len__(self) -> int:
        """How many jobs wait that no worker has been asked to run."""
        return len(self._queue)

    def put(self, live: LiveJob) -> None:
        """Let a job wait behind all others."""
        number = self._numbers[live.record.id] = next(self._arrivals)
        self._queue.append((number, live))
        self._has_some.set()

    async def take(self) -> LiveJob:
        """The job whose turn it is."""
        while not self._queue or self._is_held:
            self._has_some.clear()
            await self._has_some.wait()
        return self._pop(0)

    def remove(self, live: LiveJob) -> bool:
        """Let a job wait no longer; whether it did."""
        place = self._place(live.record.id)
        if place is not None:
            self._pop(place)
        return place is not None

    def position(self, job_id: str) -> int:
        """How many are before a job; none if it only waits for a worker."""
        return self._place(job_id) or 0

    def hold(self) -> None:
        """Give no more jobs out."""
        self._is_held = True

    def _place(self, job_id: str) -> int | None:
        number = self._numbers.get(job_id)
        return None if number is None else bisect_left(self._queue, number, key=itemgetter(0))

    def _pop(self, place: int) -> LiveJob:
        _, live = self._queue.pop(place)
        del self._numbers[live.record.id]
        return live

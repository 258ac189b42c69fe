"""The jobs that wait for one component."""

from __future__ import annotations

import asyncio
from collections import deque

from chainrule.serve._jobs._live import LiveJob
from chainrule.serve._service import Service

__all__ = ["Lane"]


class Lane:
    """Jobs of one component, first come first served.

    Attributes:
        service: the component.
        waiting: jobs that no worker has been asked to run.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.waiting: deque[LiveJob] = deque()
        self._has_some = asyncio.Event()
        self._is_held = False

    def put(self, live: LiveJob) -> None:
        """Let a job wait behind all others."""
        self.waiting.append(live)
        self._has_some.set()

    async def take(self) -> LiveJob:
        """The job whose turn it is."""
        while not self.waiting or self._is_held:
            self._has_some.clear()
            await self._has_some.wait()
        return self.waiting.popleft()

    def remove(self, live: LiveJob) -> bool:
        """Let a job wait no longer; whether it did."""
        if live not in self.waiting:
            return False
        self.waiting.remove(live)
        return True

    def position(self, job_id: str) -> int:
        """How many are before a job; none if it only waits for a worker."""
        for position, live in enumerate(self.waiting):
            if live.record.id == job_id:
                return position
        return 0

    def hold(self) -> None:
        """Give no more jobs out."""
        self._is_held = True

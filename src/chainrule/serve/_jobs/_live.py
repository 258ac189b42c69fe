"""A job that is not over: what is known of it now, who listens, and what runs it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chainrule.serve._jobs._record import JobRecord

Event = tuple[str, Any]
"""`("state" | "progress", JobRecord)` or `("log", (number, line))`."""

# A listener that does not keep up loses its oldest events, never the end of the job.
_MAX_EVENTS = 4096


class LiveJob:
    """One queued or running job. For the event loop.

    Attributes:
        record: what is known now.
        task: what runs it, once it is running.
        is_cancelled: whether somebody asked for its end.
        is_ending: whether its outcome is decided and only has to be kept.
        ended: set after its last event.
    """

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.is_ending = False
        self.ended = asyncio.Event()
        self._listeners: set[_Listener] = set()

    def publish(self, kind: str, data: Any) -> None:
        """Tell everybody who listens."""
        for listener in self._listeners:
            listener.put((kind, data))

    def end(self) -> None:
        """There is nothing more to tell."""
        self.ended.set()
        for listener in self._listeners:
            listener.put(None)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Event | None]]:
        """Events from now on, with a `None` whenever nothing happened for a while."""
        listener = _Listener()
        if self.ended.is_set():
            listener.put(None)
        self._listeners.add(listener)
        try:
            yield listener.events()
        finally:
            self._listeners.discard(listener)


class _Listener:
    _QUIET_S = 10.0

    def __init__(self) -> None:
        self._events: deque[Event | None] = deque(maxlen=_MAX_EVENTS)
        self._has_some = asyncio.Event()

    def put(self, event: Event | None) -> None:
        self._events.append(event)
        self._has_some.set()

    async def events(self) -> AsyncIterator[Event | None]:
        while True:
            while self._events:
                event = self._events.popleft()
                if event is None:
                    return
                yield event
            self._has_some.clear()
            try:
                await asyncio.wait_for(self._has_some.wait(), self._QUIET_S)
            except TimeoutError:
                yield None

"""Jobs that are not over: their queue, state, listeners and output, and what their worker reports."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from chainrule._files import open_private
from chainrule.serve._jobs._store import JobRecord
from chainrule.serve._logs import Output
from chainrule.serve._pool import Service

Event = tuple[str, Any]
"""`("state" | "progress", JobRecord)` or `("log", (number, line))`."""

# A listener that does not keep up loses its oldest events, never the end of the job.
_MAX_EVENTS = 4096


class LiveJob:
    """One queued or running job. For the event loop.

    Attributes:
        record: what is known now.
        task: what runs it, once it is running.
        is_cancelled: whether a caller asked for its end.
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
        """Tell all listeners."""
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


class JobQueue:
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


# Of the log of one job, and of one of its lines; the rest is cut off.
_MAX_BYTES = 10 << 20
_MAX_LINE = 8192


class JobLog(Output):
    """The output of one job.

    Args:
        path: file that keeps it, up to 10 MiB.
        on_line: called with the number of every line (from 1) and its text, on a thread of this log.
        pass_on: where the bytes go as well, for example the log of the server.
    """

    def __init__(
        self, path: Path, on_line: Callable[[int, str], None], pass_on: Callable[[bytes], None]
    ) -> None:
        super().__init__()
        self._path = path
        self._on_line = on_line
        self._pass_on = pass_on
        self._written = 0
        self._lines = 0
        self._rest = b""
        self._lock = threading.Lock()

    def writer(self) -> Callable[[bytes], None]:
        return self._write

    def close(self) -> None:
        """Wait until everything that was printed has arrived."""
        super().close()
        with self._lock:
            if self._rest:
                self._publish(self._rest)
                self._rest = b""

    def _write(self, chunk: bytes) -> None:
        """Add some output. A disk that is full costs lines, not jobs."""
        # Lock order: the lock of a job's log, then that of the server's log (`pass_on`); never the other way.
        with self._lock:
            with contextlib.suppress(OSError):
                self._pass_on(chunk)
            with contextlib.suppress(OSError):
                self._keep(chunk)
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                self._publish(self._rest + line)
                self._rest = b""
            self._rest = (self._rest + rest)[:_MAX_LINE]

    def _keep(self, chunk: bytes) -> None:
        room = _MAX_BYTES - self._written
        if room <= 0:
            return
        if len(chunk) > room:
            chunk = chunk[:room] + b"\n[the rest is not kept]\n"
        with open(self._path, "ab", buffering=0, opener=open_private) as file:
            file.write(chunk)
        self._written += len(chunk)

    def _publish(self, line: bytes) -> None:
        self._lines += 1
        self._on_line(self._lines, line[:_MAX_LINE].decode("utf-8", "replace"))


class JobWatcher:
    """Follows the call of one job.

    Args:
        live: the job.
        output: takes what it prints.
        on_start: awaited before the worker begins.
        timeout_s: how long the job may run; `None` for no limit.

    Attributes:
        has_started: whether a worker may have begun.
    """

    def __init__(
        self,
        live: LiveJob,
        output: Output,
        on_start: Callable[[LiveJob], Awaitable[None]],
        timeout_s: float | None,
    ) -> None:
        self._live = live
        self._on_start = on_start
        self.output = output
        self.timeout_s = timeout_s
        self.has_started = False

    async def on_start(self) -> None:
        """A worker is about to begin."""
        await self._on_start(self._live)
        self.has_started = True

    def on_progress(self, fraction: float, message: str) -> None:
        """The component said how far along it is."""
        live = self._live
        live.record = replace(live.record, fraction=fraction, message=message or None)
        live.publish("progress", live.record)

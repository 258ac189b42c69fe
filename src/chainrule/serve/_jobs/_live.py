"""Jobs that are not over: their state, listeners and output, and what their worker reports."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from chainrule.serve._jobs._store import JobRecord, LogWriter
from chainrule.serve._logs import Output

Event = tuple[str, Any]
"""`("state" | "progress", JobRecord)` or `("log", (number, line))`."""

# A listener that does not keep up loses its oldest events, never the end of the job.
_MAX_EVENTS = 4096


class LiveJob:
    """One job that this server runs, or that callers of this server follow. For the event loop.

    Attributes:
        record: what is known now.
        is_held: whether this server has taken it.
        task: what runs it, where this server has taken it.
        log: its output, while it runs here.
        follower: what learns of it from the store, where another server may hold it.
        watchers: how many callers of this server wait for it or follow it.
        news: set when the store may know more of it.
        is_cancelled: whether a caller asked for its end.
        is_lost: whether this server has to stop it without an end.
        is_ending: whether its outcome is decided and only has to be kept.
        ended: set after its last event.
    """

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.is_held = False
        self.task: asyncio.Task[None] | None = None
        self.log: JobLog | None = None
        self.follower: asyncio.Task[None] | None = None
        self.watchers = 0
        self.news = asyncio.Event()
        self.is_cancelled = False
        self.is_lost = False
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
            # Between the last look at `_events` and this line there is no `await`, so no event can come in
            # between and be forgotten.
            self._has_some.clear()
            try:
                await asyncio.wait_for(self._has_some.wait(), self._QUIET_S)
            except TimeoutError:
                yield None


# Of the log of one job, and of one of its lines; the rest is cut off.
_MAX_BYTES = 10 << 20
_MAX_LINE = 8192


class JobLog(Output):
    """The output of one job.

    Args:
        kept: keeps it, up to 10 MiB.
        on_line: called with the number of every line (from 1) and its text, on a thread of this log.
        pass_on: where the bytes go as well, for example the log of the server.
    """

    def __init__(
        self, kept: LogWriter, on_line: Callable[[int, str], None], pass_on: Callable[[bytes], None]
    ) -> None:
        super().__init__()
        self._kept = kept
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
        self.flush()

    def flush(self) -> None:
        """Let everything be read that has arrived."""
        with contextlib.suppress(OSError):
            self._kept.flush()

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
        # The bound holds for what is kept. Listeners still get every line, and `pass_on` every byte.
        if len(chunk) > room:
            chunk = chunk[:room] + b"\n[the rest is not kept]\n"
        self._kept.write(chunk)
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
        on_report: called with every progress.
        timeout_s: how long the job may run; `None` for no limit.

    Attributes:
        has_started: whether a worker may have begun.
    """

    def __init__(
        self,
        live: LiveJob,
        output: Output,
        on_start: Callable[[LiveJob], Awaitable[None]],
        on_report: Callable[[JobRecord], None],
        timeout_s: float | None,
    ) -> None:
        self._live = live
        self._on_start = on_start
        self._on_report = on_report
        self.output = output
        self.timeout_s = timeout_s
        self.has_started = False

    async def on_start(self) -> None:
        """A worker is about to begin."""
        # In this order: where the store cannot write `running`, the job has certainly not run, and may wait
        # again. The other order would report a job as failed that no worker has seen.
        await self._on_start(self._live)
        self.has_started = True

    def on_progress(self, fraction: float, message: str) -> None:
        """The component said how far along it is."""
        live = self._live
        live.record = replace(live.record, fraction=fraction, message=message or None)
        live.publish("progress", live.record)
        self._on_report(live.record)

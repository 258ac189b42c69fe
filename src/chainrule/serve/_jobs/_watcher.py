"""What a job hears from the worker that runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from chainrule.serve._jobs._live import LiveJob
from chainrule.serve._jobs._log import JobLog


class JobWatcher:
    """Follows the call of one job.

    Args:
        live: the job.
        log: where its output goes.
        on_start: awaited before the worker begins.
        timeout_s: how long the job may run; `None` for ever.

    Attributes:
        has_started: whether a worker may have begun.
    """

    def __init__(
        self,
        live: LiveJob,
        log: JobLog,
        on_start: Callable[[LiveJob], Awaitable[None]],
        timeout_s: float | None,
    ) -> None:
        self._live = live
        self._on_start = on_start
        self.log = log
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

    def open_log(self) -> int:
        """A descriptor for what the component prints."""
        return self.log.open()

    def log_is_sent(self) -> None:
        """The worker has the descriptor now."""
        self.log.sent()

    def write_log(self, chunk: bytes) -> None:
        """The component said something."""
        self.log.write(chunk)

"""A call that a server has taken on: it outlives this connection, this process and the server itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from chainrule._errors import ChainruleError, TransportError
from chainrule.client._connections import LostConnectionError
from chainrule.client._jobs import Job, Show, not_done_yet, showing
from chainrule.client._server import JobEvent, JobInfo, Server

_STATUS = {"queued": "waiting", "succeeded": "done"}
_PAUSE_S = 0.2
# A server that is being restarted is waited for so long.
_PATIENCE_S = 30.0


class ServerJob(Job):
    """A job of a server.

    Args:
        server: that has it.
        info: what is known of it.
        accept: the format in which the answer is asked for.
    """

    def __init__(self, server: Server, info: JobInfo, accept: str | None) -> None:
        self.label = info.endpoint
        self._server = server
        self._info = info
        self._accept = accept

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except ChainruleError:
            state = _STATUS.get(self._info.state, self._info.state)
            return f"<Job {self.label}: {state} when its server was last heard of>"

    @property
    def id(self) -> str:
        """By which it is found again: `component.job(id)`, `chainrule job list`."""
        return self._info.id

    @property
    def info(self) -> JobInfo:
        """What the server knows of it now."""
        if not self._info.is_final:
            self._info = self._server.job(self.id)
        return self._info

    @property
    def status(self) -> str:
        """`waiting`, `running`, `done`, `failed` or `cancelled`."""
        state = self.info.state
        return _STATUS.get(state, state)

    @property
    def fraction(self) -> float | None:
        """How far along it is, between 0 and 1, if the component says so with `progress`; 1 when done."""
        return self.info.fraction

    @property
    def message(self) -> str | None:
        """What it is doing, if the component says so."""
        return self.info.message

    @property
    def log(self) -> str:
        """What the component printed so far."""
        return self._server.log(self.id)

    def events(self) -> Iterator[JobEvent]:
        """Changes of state, progress and lines of the log as they come, until the job is over."""
        return self._server.events(self.id)

    def result(self, timeout: float | None = None, *, progress: Show = False) -> Any:
        """The answer of the call, waited for; see `Job.result`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with showing(progress, self.label) as show:
            while not self._info.is_final:
                self._follow(deadline, show)
            if self._info.state == "cancelled":
                raise self._cancelled()
            return self._server.result(self.id, self._accept)

    def cancel(self) -> None:
        """Give the call up. Its worker is free when this returns."""
        self._info = self._server.cancel(self.id)

    async def _wait(self) -> Any:
        try:
            return await asyncio.to_thread(self.result)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.cancel)
            raise

    def _follow(self, deadline: float | None, show: Callable[[float, str], Any]) -> None:
        """Learn what happens until the job is over, the connection breaks, or time is up."""
        try:
            for event in self._server.events(self.id, timeout_s=_left(deadline)):
                if event.job is not None:
                    self._info = event.job
                    if event.job.fraction is not None:
                        show(event.job.fraction, event.job.message or "")
                _left(deadline)
        except LostConnectionError:
            self._find_again(deadline)

    def _find_again(self, deadline: float | None) -> None:
        patience = time.monotonic() + _PATIENCE_S
        while True:
            _left(deadline)
            try:
                self._info = self._server.job(self.id)
                return
            except TransportError:
                if time.monotonic() > patience:
                    raise
                time.sleep(_PAUSE_S)


def _left(deadline: float | None) -> float | None:
    """Seconds until the deadline.

    Raises:
        TimeoutError: it has passed.
    """
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise not_done_yet()
    return left

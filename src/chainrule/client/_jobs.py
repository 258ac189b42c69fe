"""Calls that run while the caller does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from typing import Any

from chainrule._errors import TransportError
from chainrule.client._transport import Ticket

__all__ = ["Job"]


class Job:
    """A call that is under way: wait for it with `result`, `await` it, or give it up.

    Args:
        executor: runs the call.
        function: the call, of a ticket by which it can be given up.
        label: what is called, for people.
    """

    def __init__(self, executor: Executor, function: Callable[[Ticket], Any], label: str) -> None:
        self._ticket = Ticket()
        self._label = label
        self._future: Future[Any] = executor.submit(self._run, function)

    def __repr__(self) -> str:
        return f"<Job {self._label}: {self.status}>"

    @property
    def status(self) -> str:
        """`waiting`, `running`, `done`, `failed` or `cancelled`."""
        if self._ticket.is_cancelled:
            return "cancelled"
        if not self._future.done():
            return "running" if self._future.running() else "waiting"
        return "failed" if self._future.exception() else "done"

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        """The answer of the call, waited for.

        Args:
            timeout: seconds to wait; `None` waits until there is an answer.

        Raises:
            TimeoutError: no answer yet; the call goes on.
            ChainruleError: what the call raised; `cancelled` when it was given up.
        """
        return self._future.result(timeout)

    def cancel(self) -> None:
        """Give the call up. A server stops the work when it notices that nobody waits any more."""
        self._ticket.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        try:
            return await asyncio.wrap_future(self._future)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _run(self, function: Callable[[Ticket], Any]) -> Any:
        if self._ticket.is_cancelled:
            raise self._cancelled()
        try:
            return function(self._ticket)
        except TransportError as error:
            if self._ticket.is_cancelled:
                raise self._cancelled() from error
            raise

    def _cancelled(self) -> TransportError:
        return TransportError(f"The call of {self._label} was given up.", code="cancelled")

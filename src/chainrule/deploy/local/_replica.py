"""A replica in a process of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chainrule._errors import ChainruleError, TransportError
from chainrule.client import Ticket, Transport
from chainrule.deploy._pool import Replica, ReplicaLostError

_numbers = itertools.count()


class ProcessReplica(Replica):
    """A child process with the component.

    Args:
        spawn: starts a process and loads the component in it.
    """

    def __init__(self, spawn: Callable[[], Transport]) -> None:
        self.id = f"process-{next(_numbers)}"
        self._spawn = spawn
        self._transport: Transport | None = None

    def start(self) -> dict[str, Any]:
        """A new process, in place of the one before."""
        self.stop()
        self._transport = self._spawn()
        return self._transport.describe()

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have the process answer."""
        transport = self._transport
        if transport is None or transport.health()["status"] != "ok":
            # It ended between two calls. It must be started by the thread that minds it, not by ours.
            raise ReplicaLostError("The process ended before the call.", never_began=True)
        try:
            return transport.call(endpoint, payload, run_id=run_id, ticket=ticket)
        except TransportError as error:
            if error.code == "worker_crashed":
                raise ReplicaLostError(error.message, details=error.details) from error
            is_over = error.code == "cancelled" and transport.health()["status"] != "ok"
            if is_over or error.code == "call_timeout":
                raise ReplicaLostError(error.message, code=error.code, may_repeat=False) from error
            raise

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """One after the other: a message to a process costs too little to share it."""
        answers: list[Any] = []
        for payload in payloads:
            try:
                answers.append(self.call(endpoint, payload, ticket=ticket))
            except ReplicaLostError:
                raise
            except ChainruleError as error:
                answers.append(error)
        return answers

    def stop(self) -> None:
        """End the process."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

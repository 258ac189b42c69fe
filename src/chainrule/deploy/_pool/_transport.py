"""A pool as a transport: every call is answered by some replica, whatever becomes of the others."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from chainrule._errors import InputError, TransportError
from chainrule.client import Ticket, Transport
from chainrule.deploy._pool._affinity import Affinity, fingerprint
from chainrule.deploy._pool._dispatch import Dispatcher, Slot
from chainrule.deploy._pool._minders import Minders
from chainrule.deploy._pool._replica import Replica, ReplicaLostError

_log = logging.getLogger(__name__)

_POLL_S = 0.02

T = TypeVar("T")


class PoolTransport(Transport):
    """Replicas of one component behind the interface of all transports; they go when it is closed or dropped.

    Args:
        place: where the pool is, for people.
        depth: calls that one replica may have at once.
        max_replicas: how many there will be at most.
        idempotent: calls may run twice; they are then repeated when a replica dies.
        max_deaths: after so many deaths of replicas, a call's input is held to be the cause.
        startup_timeout_s: how long callers wait while no replica is up.

    Attributes:
        is_closed: whether it takes no more calls.
    """

    def __init__(
        self,
        place: str,
        *,
        depth: int,
        max_replicas: int,
        idempotent: bool,
        max_deaths: int,
        startup_timeout_s: float,
    ) -> None:
        # A call that waits behind another one in a dead replica has not run, but nobody can tell.
        depth = depth if idempotent else 1
        self.place = place
        self.max_concurrency = max_replicas * depth
        self._idempotent = idempotent
        self._max_deaths = max_deaths
        self._startup_timeout_s = startup_timeout_s
        self._dispatcher = Dispatcher(depth, startup_timeout_s)
        self._affinity = Affinity()
        self._minders = Minders(self._dispatcher)
        self._repeated = 0
        self.is_closed = False
        # At the end of the interpreter each replica goes by itself.
        weakref.finalize(self, self._minders.close_aside).atexit = False

    @property
    def known_document(self) -> dict[str, Any] | None:
        """The document that the first replica gave."""
        return self._minders.document

    def start(self) -> None:
        """Get ready for calls, if that was put off until the first of them."""

    def describe(self) -> dict[str, Any]:
        """The document that the first replica gave."""
        self.start()
        if self._minders.document is None:
            self.wait_until_ready(1)
        assert self._minders.document is not None, "a replica that is up has told it"
        return self._minders.document

    def health(self) -> dict[str, Any]:
        """`ok` while a replica is up, `degraded` while none is; and what `status` says."""
        self.start()
        return {"status": "ok" if self._dispatcher.up else "degraded", **self.status()}

    def status(self) -> dict[str, Any]:
        """Replicas and their states, calls that wait, calls that were repeated, gradients that went home."""
        return {
            "replicas": [
                {
                    "id": slot.replica.id,
                    "state": slot.state,
                    "in_flight": slot.in_flight,
                    "restarts": slot.deaths,
                }
                for slot in self._dispatcher.slots
            ],
            "waiting": self._dispatcher.waiting,
            "repeated": self._repeated,
            "affinity": self._affinity.counts,
        }

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have a replica answer, and another one if it dies.

        Raises:
            InputError: the request is at fault; `poison_input` when it kills every replica that tries.
            TransportError: no answer came; `replica_lost` when calls may not be repeated.
        """
        point = self._point(endpoint, payload)
        return self.attempt(
            endpoint,
            point,
            lambda replica: replica.call(endpoint, payload, run_id=run_id, ticket=ticket),
            ticket or Ticket(),
        )

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """Several calls in one message to one replica. If it dies, each of them is on its own."""
        self.start()
        ticket = ticket or Ticket()
        if self._idempotent:
            points = [self._point(endpoint, payload) for payload in payloads]
            try:
                with self._dispatcher.lease(ticket=ticket) as slot:
                    answers = self._ask(
                        slot, lambda replica: replica.call_many(endpoint, payloads, ticket=ticket)
                    )
                for point in points:
                    self._affinity.note(endpoint, point, slot.replica.id)
                return answers
            except ReplicaLostError:
                self._repeated += len(payloads)
            except TransportError as error:
                return [error] * len(payloads)
        return super().call_many(endpoint, payloads, ticket=ticket)

    def attempt(
        self, endpoint: str, point: bytes | None, ask: Callable[[Replica], T], ticket: Ticket
    ) -> T:
        """What `ask` gives for some replica.

        Args:
            endpoint: what is asked for.
            point: fingerprint of the inputs.
            ask: sends the call.
            ticket: by which the caller may give up.
        """
        self.start()
        deaths = 0
        while True:
            try:
                home = self._affinity.home(endpoint, point) if not deaths else None
                # Once a replica has died of it, a call runs alone: the next death is no one else's doing.
                with self._dispatcher.lease(prefer=home, alone=deaths > 0, ticket=ticket) as slot:
                    answer = self._ask(slot, ask)
                self._affinity.note(endpoint, point, slot.replica.id)
                return answer
            except ReplicaLostError as error:
                if error.never_began:
                    continue
                deaths += 1
                self._raise_final(error, endpoint, deaths, ticket)
                self._repeated += 1

    def close(self) -> None:
        """Let go of the replicas."""
        self.is_closed = True
        self._minders.close()

    def add_replica(self, replica: Replica) -> None:
        """Start one more replica, and keep it alive."""
        self._minders.add(replica)

    def remove_replica(self, slot: Slot) -> None:
        """Let a replica go once it has answered the calls it has."""
        self._dispatcher.remove(slot)

    def wait_until_ready(self, count: int) -> None:
        """Wait until some replicas are up; at the end of the time, one is enough.

        Raises:
            DefinitionError: the component cannot be loaded.
            TransportError: no replica came up in time.
        """
        deadline = time.monotonic() + self._startup_timeout_s
        while True:
            if self._minders.failure is not None:
                raise self._minders.failure
            up = self._dispatcher.up
            if up >= count:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        if not up:
            raise TransportError(
                f"No replica was ready within {self._startup_timeout_s:g} s. Pass a larger startup_timeout, "
                "or ask for resources that the cluster has.",
                code="pool_unavailable",
            )
        _log.warning("%s: %d of %d replicas are up; others may follow", self.place, up, count)

    def has_homes(self, endpoint: str) -> bool:
        """Whether it matters which replica answers an endpoint."""
        return self._minders.gives_gradients and self._affinity.concerns(endpoint)

    def _point(self, endpoint: str, payload: Mapping[str, Any]) -> bytes | None:
        return fingerprint(payload.get("inputs")) if self.has_homes(endpoint) else None

    def _ask(self, slot: Slot, ask: Callable[[Replica], T]) -> T:
        try:
            return ask(slot.replica)
        except ReplicaLostError:
            self._dispatcher.mark_lost(slot)
            raise

    def _raise_final(
        self, error: ReplicaLostError, endpoint: str, deaths: int, ticket: Ticket
    ) -> None:
        """Raise if the call must not be repeated."""
        if not error.may_repeat or ticket.is_cancelled:
            raise error
        if not self._idempotent:
            raise ReplicaLostError(
                f"The replica that was computing {endpoint} died. The call was not repeated, because "
                "this pool was deployed with idempotent=False.",
                details=error.details,
            ) from error
        if deaths >= self._max_deaths:
            raise InputError(
                f"{deaths} replicas died while they computed {endpoint} for this input, the last of them "
                "with no other call. The input is not tried again; the pool goes on.",
                code="poison_input",
                details=error.details | {"deaths": deaths},
            ) from error

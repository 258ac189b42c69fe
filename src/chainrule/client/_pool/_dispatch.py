"""The dispatcher of a pool: calls of many threads wait here for replicas, which may die at any time.

`_assignment` decides who gets what. Here are the lock around it, the clock, and the waiting.

One lock guards everything. It is never held while a call runs or waits, nor while a ticket's callback is set.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chainrule._errors import TransportError
from chainrule.client._pool._assignment import SPARE_LAST_S, Assignment, Call, Choice, Place
from chainrule.client._transport import Caller, Ticket


class ReplicaLostError(TransportError):
    """A replica died or cannot be reached any more, so a call gets no answer.

    Attributes:
        may_repeat: whether another replica may get the call; not after a timeout or a cancellation.
        never_began: whether the replica had died before the call reached it.
    """

    default_code = "replica_lost"

    def __init__(
        self, message: str, *, may_repeat: bool = True, never_began: bool = False, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.may_repeat = may_repeat
        self.never_began = never_began


class Replica(Caller):
    """One copy of a component that a pool sends calls to. `start` is called again after every death.

    `call` and `call_many` raise a `ReplicaLostError` when no answer will come.

    Attributes:
        id: name of the replica in its pool.
    """

    id: str

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Wait until the replica can answer; start it where no one else does.

        Returns:
            The OpenAPI document of the component.

        Raises:
            DefinitionError: the component cannot be loaded.
            TransportError: the replica died while loading.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop using the replica; end it where no one else does."""


class Slot(Place):
    """A replica's place in the pool.

    Attributes:
        replica: the replica.
        changed: set when the replica is lost or has to leave.
    """

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica.id)
        self.replica = replica
        self.changed = threading.Event()


class _WaitingCall(Call):
    """A call whose thread sleeps until it is woken: it was given a replica, or the pool has changed."""

    woken: threading.Event | None = None


class Dispatcher:
    """Hands out replicas to calls: the one asked for, or the least busy. Safe between threads.

    Args:
        depth: calls that a replica may have at once: 1, or more to hide the time of a message.
        patience_s: how long a call waits while no replica is up.
        choice: which of the replicas with room gets a call: the least busy one when not given.
        why_none_is_up: what a call is told that has waited so long.
    """

    def __init__(
        self,
        depth: int,
        patience_s: float,
        *,
        choice: Choice | None = None,
        why_none_is_up: Callable[[], TransportError] | None = None,
    ) -> None:
        self._patience_s = patience_s
        self._why_none_is_up = why_none_is_up or self._no_replica
        # Of `_assignment`, which knows no threads. Its callbacks run while the lock is held: they set events.
        self._lock = threading.Lock()
        self._assignment = Assignment(
            depth, time.monotonic(), choice=choice, on_given=_wake, on_changed=_tell_of_change
        )
        self._is_closed = False

    @property
    def slots(self) -> list[Slot]:
        """All slots, those of replicas that start or leave included."""
        with self._lock:
            return [slot for slot in self._assignment.places.values() if isinstance(slot, Slot)]

    @property
    def up(self) -> int:
        """How many replicas are up."""
        return self._assignment.up

    @property
    def changes(self) -> int:
        """How often a replica came up or went down."""
        return self._assignment.changes

    @property
    def waiting(self) -> int:
        """Calls that wait for a replica."""
        return len(self._assignment.waiting)

    @property
    def load(self) -> int:
        """Calls that run or wait."""
        with self._lock:
            return len(self._assignment.waiting) + self._assignment.in_flight

    def add(self, slot: Slot) -> None:
        """Add a replica; it gets calls once it is up."""
        with self._lock:
            self._assignment.add(slot)

    def remove(self, slot: Slot) -> None:
        """Give a replica no more calls; it leaves when it has answered those it has."""
        with self._lock:
            self._assignment.remove(slot, time.monotonic())

    def mark_up(self, slot: Slot) -> None:
        """A replica can be given calls."""
        with self._lock:
            self._assignment.mark_up(slot, time.monotonic())

    def mark_lost(self, slot: Slot) -> bool:
        """A replica has died: it gets no calls until it is up again. Whether that is news."""
        with self._lock:
            return self._assignment.mark_lost(slot, time.monotonic())

    def note_answer(self, slot: Slot) -> None:
        """A replica has answered."""
        with self._lock:
            self._assignment.note_answer(slot, time.monotonic())

    def note_failure(self, slot: Slot) -> bool:
        """A call has failed, and the replica may be the cause. Whether it is ejected for that."""
        with self._lock:
            return self._assignment.note_failure(slot, time.monotonic())

    def turn_away(self, slot: Slot) -> bool:
        """A replica has no room although it should: it rests until `reopen`. Whether that is news."""
        with self._lock:
            return self._assignment.turn_away(slot, time.monotonic())

    def reopen(self, slot: Slot) -> None:
        """A replica has rested."""
        with self._lock:
            self._assignment.reopen(slot, time.monotonic())

    def close(self) -> None:
        """Let no call wait any longer."""
        with self._lock:
            self._is_closed = True
            # They only wake here; each raises in its own thread, from `_check_open`, and takes itself out of
            # the queue (`leave`) when this lock is free again. So the set does not change under this loop.
            for call in self._assignment.waiting:
                _wake(call)

    @contextmanager
    def lease(
        self,
        *,
        prefer: str | None = None,
        avoid: str | None = None,
        insists: bool = False,
        alone: bool = False,
        ticket: Ticket,
    ) -> Iterator[Slot]:
        """A replica for one call.

        Args:
            prefer: id of the replica to take, as long as it is up.
            avoid: id of a replica not to take while others have room.
            insists: wait for that replica also while another one is free.
            alone: the replica has no other call at the same time.
            ticket: with which the caller may cancel.

        Raises:
            TransportError: the call was cancelled, the pool is closed, or no replica came up.
        """
        call = _WaitingCall(prefer, avoid=avoid, insists=insists, alone=alone)
        place = self._acquire(call, ticket)
        assert isinstance(place, Slot), "only slots are added"
        try:
            yield place
        finally:
            with self._lock:
                self._assignment.release(call, time.monotonic())

    def _acquire(self, call: _WaitingCall, ticket: Ticket) -> Place:
        with self._lock:
            self._check_open(ticket)
            place = self._assignment.arrive(call, time.monotonic())
            if place is not None:
                return place
            woken = call.woken = threading.Event()
        # Not under the lock: a ticket that is cancelled already calls back at once, in this thread.
        # `_wait` looks at the ticket before it sleeps, so a cancellation before this line is not missed
        # either.
        ticket.when_cancelled(woken.set)
        try:
            return self._wait(call, woken, ticket)
        except BaseException:
            with self._lock:
                self._assignment.leave(call, time.monotonic())
            raise
        finally:
            ticket.when_cancelled(None)

    def _wait(self, call: Call, woken: threading.Event, ticket: Ticket) -> Place:
        while True:
            # Cleared before the state is read: a change after the read sets it again, so none is missed.
            woken.clear()
            with self._lock:
                self._check_open(ticket)
                now = time.monotonic()
                self._assignment.pass_time(now)
                if call.place is not None:
                    return call.place
                wait_s = self._seconds_to_wait(call, now)
            if wait_s <= 0:
                raise self._why_none_is_up()  # it may look at the replicas, which takes the lock
            woken.wait(wait_s)

    def _check_open(self, ticket: Ticket) -> None:
        if self._is_closed:
            raise TransportError("This component has been closed.", code="closed")
        if ticket.is_cancelled:
            raise TransportError("The call was cancelled before it began.", code="cancelled")

    def _seconds_to_wait(self, call: Call, now: float) -> float:
        """How long a call may sleep until the time alone changes something for it; 0 when it gives up."""
        patience_s = self._patience_s
        if not self._assignment.up:
            # The patience begins when the call arrived or when the last replica went down, whichever is
            # later: a call that has waited long for a busy replica does not give up at the moment in which
            # that one dies.
            patience_s += max(call.since, self._assignment.down_since) - now
        spare_s = call.since + SPARE_LAST_S - now
        return min(patience_s, spare_s) if call.is_suspect and spare_s > 0 else patience_s

    def _no_replica(self) -> TransportError:
        return TransportError(
            f"No replica of the pool has come up for {self._patience_s:g} s. See its log, or the "
            "resources that the cluster has left.",
            code="pool_unavailable",
        )


def _wake(call: Call) -> None:
    if isinstance(call, _WaitingCall) and call.woken is not None:
        call.woken.set()


def _tell_of_change(place: Place) -> None:
    if isinstance(place, Slot):
        place.changed.set()

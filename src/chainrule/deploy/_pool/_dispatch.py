"""Which replica gets the next call, and who waits for one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chainrule._errors import TransportError
from chainrule.client import Ticket
from chainrule.deploy._pool._replica import Replica

__all__ = ["Dispatcher", "Slot"]

# A call that may be poisonous leaves the last replica that is up to others, but does not wait for ever.
_SPARE_LAST_S = 5.0
_LOOK_AGAIN_S = 1.0


class _Suspect:
    """A call that was with a replica when it died, and that runs alone from now on."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def may_take(self, free: list[Slot], all_slots: int) -> bool:
        """Whether it may be sent to one of these replicas, of so many in all."""
        waited_s = time.monotonic() - self._since
        return len(free) > 1 or all_slots == 1 or waited_s > _SPARE_LAST_S


class Slot:
    """A replica's place in the pool.

    Attributes:
        replica: who answers.
        is_up: whether calls can be sent to it.
        is_leaving: whether it gets no more calls.
        in_flight: calls it has been given and has not answered.
        held_for: the one call that it is kept free for, if any.
        deaths: how often it had to be started again.
        turn: when it was last given a call, counted in calls.
        changed: set when the replica is lost or is to leave.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.is_up = False
        self.is_leaving = False
        self.in_flight = 0
        self.held_for: _Suspect | None = None
        self.deaths = 0
        self.turn = 0
        self.changed = threading.Event()

    @property
    def state(self) -> str:
        """`starting`, `idle`, `busy` or `leaving`."""
        if self.is_leaving:
            return "leaving"
        if not self.is_up:
            return "starting"
        return "busy" if self.in_flight else "idle"


class Dispatcher:
    """Hands out replicas to calls: the one asked for, or the least busy. Safe between threads.

    Args:
        depth: calls that a replica may have at once: 1, or more to hide the way there and back.
        patience_s: how long a call waits while not a single replica is up.
    """

    def __init__(self, depth: int, patience_s: float) -> None:
        self._depth = depth
        self._patience_s = patience_s
        self._slots: dict[str, Slot] = {}
        self._changed = threading.Condition()
        self._turns = itertools.count(1)
        self._waiting = 0
        self._is_closed = False

    @property
    def slots(self) -> list[Slot]:
        """All places, those of replicas that start or leave included."""
        with self._changed:
            return list(self._slots.values())

    @property
    def waiting(self) -> int:
        """Calls that wait for a replica."""
        return self._waiting

    @property
    def load(self) -> int:
        """Calls that run or wait."""
        with self._changed:
            return self._waiting + sum(slot.in_flight for slot in self._slots.values())

    def add(self, slot: Slot) -> None:
        """A new place; it gets calls once it is up."""
        with self._changed:
            self._slots[slot.replica.id] = slot

    def remove(self, slot: Slot) -> None:
        """Give a replica no more calls; it goes when it has answered those it has."""
        with self._changed:
            slot.is_leaving = True
            if not slot.in_flight:
                self._drop(slot)

    def mark_up(self, slot: Slot) -> None:
        """A replica can be given calls."""
        with self._changed:
            slot.is_up = True
            self._changed.notify_all()

    def mark_lost(self, slot: Slot) -> None:
        """A replica has died: it gets no calls until it is up again."""
        with self._changed:
            if slot.is_up:  # others may have noticed before
                slot.is_up = False
                slot.deaths += 1
                slot.changed.set()
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @contextmanager
    def lease(
        self, *, prefer: str | None = None, alone: bool = False, ticket: Ticket
    ) -> Iterator[Slot]:
        """A replica for one call.

        Args:
            prefer: id of the replica to wait for, as long as it is up.
            alone: nobody else's call may be with the replica at the same time.
            ticket: by which the caller may give up.

        Raises:
            TransportError: the caller gave up, the pool is closed, or no replica came up.
        """
        suspect = _Suspect() if alone else None
        slot = self._acquire(prefer, suspect, ticket)
        try:
            yield slot
        finally:
            self._release(slot, suspect)

    def _acquire(self, prefer: str | None, suspect: _Suspect | None, ticket: Ticket) -> Slot:
        with self._changed:
            slot = self._choose(prefer, suspect)
            if slot is None or ticket.is_cancelled or self._is_closed:
                slot = self._wait(prefer, suspect, ticket)
            slot.in_flight += 1
            slot.turn = next(self._turns)
            return slot

    def _wait(self, prefer: str | None, suspect: _Suspect | None, ticket: Ticket) -> Slot:
        last_up = time.monotonic()
        self._waiting += 1
        ticket.when_cancelled(self._wake)
        try:
            while True:
                self._check(ticket, last_up)
                slot = self._choose(prefer, suspect)
                if slot is not None:
                    return slot
                if any(slot.is_up for slot in self._slots.values()):
                    last_up = time.monotonic()
                self._changed.wait(_LOOK_AGAIN_S)
        except BaseException:
            self._free(suspect)
            raise
        finally:
            ticket.when_cancelled(None)
            self._waiting -= 1

    def _check(self, ticket: Ticket, last_up: float) -> None:
        if self._is_closed:
            raise TransportError("This component has been closed.", code="closed")
        if ticket.is_cancelled:
            raise TransportError("The call was given up before it began.", code="cancelled")
        if time.monotonic() - last_up > self._patience_s:
            raise TransportError(
                f"No replica of the pool has come up for {self._patience_s:g} s. See its log, or the "
                "resources that the cluster has left.",
                code="pool_unavailable",
            )

    def _choose(self, prefer: str | None, suspect: _Suspect | None) -> Slot | None:
        """A place with room; `None` when the caller has to wait. A suspect holds one for itself."""
        usable = [slot for slot in self._slots.values() if slot.is_up and not slot.is_leaving]
        if suspect is not None:
            return self._choose_alone(usable, suspect)
        free = [slot for slot in usable if slot.held_for is None]
        home = next((slot for slot in free if slot.replica.id == prefer), None)
        candidates = [slot for slot in free if slot.in_flight < self._depth]
        if home is not None:
            return home if home in candidates else None
        return min(candidates, key=lambda slot: (slot.in_flight, slot.turn), default=None)

    def _choose_alone(self, usable: list[Slot], suspect: _Suspect) -> Slot | None:
        held = next((slot for slot in usable if slot.held_for is suspect), None)
        if held is None:
            free = [slot for slot in usable if slot.held_for is None]
            held = min(free, key=lambda slot: (slot.in_flight, slot.turn), default=None)
            if held is None or not suspect.may_take(free, len(self._slots)):
                return None
            self._free(suspect)  # one that it held before may have died
            held.held_for = suspect
        return held if held.in_flight == 0 else None

    def _free(self, suspect: _Suspect | None) -> None:
        for slot in self._slots.values():
            if suspect is not None and slot.held_for is suspect:
                slot.held_for = None
                self._changed.notify_all()

    def _release(self, slot: Slot, suspect: _Suspect | None) -> None:
        with self._changed:
            slot.in_flight -= 1
            self._free(suspect)
            if slot.is_leaving and not slot.in_flight:
                self._drop(slot)
            self._changed.notify_all()

    def _drop(self, slot: Slot) -> None:
        self._slots.pop(slot.replica.id, None)
        slot.changed.set()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

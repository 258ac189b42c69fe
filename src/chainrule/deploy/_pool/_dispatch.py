"""Which replica gets the next call, and which call waits.

A call costs the same however many replicas there are and however many calls wait:

- Replicas that take calls are in lists by the number of calls they have, in the order in which they got to
  that number. The first of the shortest list that is not empty is the least busy one, and the one that was
  idle longest.
- A call that must wait is in one queue: that of the replica it prefers, or the common one. One that only
  prefers a replica, and does not need it, waits only while all others are full. A replica that has
  room again goes to the call that waited longest, and only that call wakes up.

Two invariants make this correct without a search. While a call waits for any replica, every replica that
takes calls is full. While a call waits for its replica, that replica takes calls and is full.

One lock guards everything. It is never held while a call runs or waits, nor while a ticket's callback is set.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chainrule._errors import TransportError
from chainrule.client import Ticket
from chainrule.client.internal import Caller

# A call that may kill replicas leaves the last one that is up to the other calls for so long.
_SPARE_LAST_S = 5.0


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


class Slot:
    """A replica's place in the pool.

    Attributes:
        replica: the replica.
        is_up: whether calls can be sent to it.
        is_leaving: whether it gets no more calls.
        in_flight: calls it has been given and has not answered.
        held_for: the one call that it is reserved for, if any.
        deaths: how often it had to be started again.
        queue: calls that wait for this replica, the longest wait first.
        changed: set when the replica is lost or has to leave.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.is_up = False
        self.is_leaving = False
        self.in_flight = 0
        self.held_for: _Call | None = None
        self.deaths = 0
        self.queue: _Queue = OrderedDict()
        self.changed = threading.Event()
        self.listed_in: OrderedDict[Slot, None] | None = None

    @property
    def takes_calls(self) -> bool:
        """Whether it may be given calls as soon as it has room."""
        return self.is_up and not self.is_leaving and self.held_for is None

    @property
    def state(self) -> str:
        """`starting`, `idle`, `busy` or `leaving`."""
        if self.is_leaving:
            return "leaving"
        if not self.is_up:
            return "starting"
        return "busy" if self.in_flight else "idle"


class _Call:
    """A call that wants a replica.

    Attributes:
        number: in the order of arrival.
        prefer: id of the replica it wants.
        insists: whether it waits for that one while others are free.
        is_suspect: whether it was with a replica when that died; it runs alone from now on.
        since: when it arrived.
        slot: what it was given.
        queue: where it waits; `None` for a suspect that has a replica reserved.
        held: the replica that is reserved for it.
        woken: set when it was given a replica, or the state of the pool has changed.
    """

    def __init__(
        self, number: int, prefer: str | None, is_suspect: bool, *, insists: bool = False
    ) -> None:
        self.number = number
        self.prefer = prefer
        self.insists = insists
        self.is_suspect = is_suspect
        self.since = 0.0
        self.slot: Slot | None = None
        self.queue: _Queue | None = None
        self.held: Slot | None = None
        self.woken: threading.Event | None = None


_Queue = OrderedDict[_Call, None]  # first in, first out, and any call can leave at once


class Dispatcher:
    """Hands out replicas to calls: the one asked for, or the least busy. Safe between threads.

    Args:
        depth: calls that a replica may have at once: 1, or more to hide the time of a message.
        patience_s: how long a call waits while no replica is up.
    """

    def __init__(self, depth: int, patience_s: float) -> None:
        self._depth = depth
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._slots: dict[str, Slot] = {}
        # Replicas that take calls, by how many they have; the last list is of those without room.
        self._by_load: list[OrderedDict[Slot, None]] = [OrderedDict() for _ in range(depth + 1)]
        self._queue: _Queue = OrderedDict()
        self._suspects: _Queue = OrderedDict()
        self._waiting: set[_Call] = set()
        self._numbers = itertools.count()
        self._in_flight = 0
        self._up = 0
        self._down_since = time.monotonic()
        self._is_closed = False

    @property
    def slots(self) -> list[Slot]:
        """All slots, those of replicas that start or leave included."""
        with self._lock:
            return list(self._slots.values())

    @property
    def up(self) -> int:
        """How many replicas are up."""
        return self._up

    @property
    def waiting(self) -> int:
        """Calls that wait for a replica."""
        return len(self._waiting)

    @property
    def load(self) -> int:
        """Calls that run or wait."""
        with self._lock:
            return len(self._waiting) + self._in_flight

    def add(self, slot: Slot) -> None:
        """Add a replica; it gets calls once it is up."""
        with self._lock:
            self._slots[slot.replica.id] = slot

    def remove(self, slot: Slot) -> None:
        """Give a replica no more calls; it leaves when it has answered those it has."""
        with self._lock:
            slot.is_leaving = True
            self._settle(slot)

    def mark_up(self, slot: Slot) -> None:
        """A replica can be given calls."""
        with self._lock:
            if not slot.is_up and self._slots.get(slot.replica.id) is slot:
                slot.is_up = True
                self._up += 1
                self._settle(slot)

    def mark_lost(self, slot: Slot) -> None:
        """A replica has died: it gets no calls until it is up again."""
        with self._lock:
            if slot.is_up:  # another call may have noticed it before
                slot.deaths += 1
                self._count_down(slot)
                slot.changed.set()
                self._settle(slot)

    def close(self) -> None:
        """Let no call wait any longer."""
        with self._lock:
            self._is_closed = True
            for call in self._waiting:
                _wake(call)

    @contextmanager
    def lease(
        self,
        *,
        prefer: str | None = None,
        insists: bool = False,
        alone: bool = False,
        ticket: Ticket,
    ) -> Iterator[Slot]:
        """A replica for one call.

        Args:
            prefer: id of the replica to take, as long as it is up.
            insists: wait for that replica also while another one is free.
            alone: the replica has no other call at the same time.
            ticket: with which the caller may cancel.

        Raises:
            TransportError: the call was cancelled, the pool is closed, or no replica came up.
        """
        call = _Call(next(self._numbers), prefer, alone, insists=insists)
        slot = self._acquire(call, ticket)
        try:
            yield slot
        finally:
            with self._lock:
                self._give_back(call)

    def _acquire(self, call: _Call, ticket: Ticket) -> Slot:
        with self._lock:
            self._check_open(ticket)
            call.since = time.monotonic()
            self._admit(call)
            if call.slot is not None:
                return call.slot
            call.woken = threading.Event()
            self._waiting.add(call)
        # Not under the lock: a ticket that is cancelled already calls back at once, in this thread.
        ticket.when_cancelled(call.woken.set)
        try:
            return self._wait(call, call.woken, ticket)
        except BaseException:
            with self._lock:
                self._leave(call)
            raise
        finally:
            ticket.when_cancelled(None)

    def _wait(self, call: _Call, woken: threading.Event, ticket: Ticket) -> Slot:
        while True:
            # Cleared before the state is read: a change after the read sets it again, so none is missed.
            woken.clear()
            with self._lock:
                self._check_open(ticket)
                self._hold_for_suspects()  # one may have waited long enough by now
                if call.slot is not None:
                    return call.slot
                wait_s = self._seconds_to_wait(call)
            woken.wait(wait_s)

    def _check_open(self, ticket: Ticket) -> None:
        if self._is_closed:
            raise TransportError("This component has been closed.", code="closed")
        if ticket.is_cancelled:
            raise TransportError("The call was cancelled before it began.", code="cancelled")

    def _seconds_to_wait(self, call: _Call) -> float:
        """How long a call may sleep until the time alone changes something for it."""
        now = time.monotonic()
        patience_s = self._patience_s
        if not self._up:
            patience_s = max(call.since, self._down_since) + self._patience_s - now
            if patience_s <= 0:
                raise TransportError(
                    f"No replica of the pool has come up for {self._patience_s:g} s. See its log, or the "
                    "resources that the cluster has left.",
                    code="pool_unavailable",
                )
        spare_s = call.since + _SPARE_LAST_S - now
        return min(patience_s, spare_s) if call.is_suspect and spare_s > 0 else patience_s

    # All below is called with the lock held.

    def _admit(self, call: _Call) -> None:
        """Give a call a replica, or a place in a queue."""
        if call.is_suspect:
            self._enqueue(call, self._suspects)
            self._hold_for_suspects()
            return
        home = None if call.prefer is None else self._slots.get(call.prefer)
        if home is not None and home.takes_calls:
            other = None if call.insists else _first(self._by_load[:-1])
            if home.in_flight < self._depth:
                self._give(home, call)
            elif other is not None:
                self._give(other, call)
            else:
                self._enqueue(call, home.queue)
            return
        slot = _first(self._by_load[:-1])
        if slot is not None:
            self._give(slot, call)
        else:
            self._enqueue(call, self._queue)

    def _settle(self, slot: Slot) -> None:
        """Restore the invariants after the state of a replica has changed."""
        if slot.is_leaving and not slot.in_flight:
            self._drop(slot)
        suspect = slot.held_for
        if suspect is not None and suspect.slot is None:
            if slot.is_up and not slot.is_leaving:
                self._keep_for(slot, suspect)
                return
            _let_go(slot)
            self._enqueue(suspect, self._suspects)
        self._list(slot)
        self._hold_for_suspects()
        while slot.takes_calls and slot.in_flight < self._depth:
            call = self._next_for(slot)
            if call is None:
                return
            self._give(slot, call)

    def _next_for(self, slot: Slot) -> _Call | None:
        """The call that has waited longest for this replica or for any; it leaves its queue."""
        queues = [queue for queue in (slot.queue, self._queue) if queue]
        if not queues:
            return None
        queue = min(queues, key=lambda queue: next(iter(queue)).number)
        return queue.popitem(last=False)[0]

    def _hold_for_suspects(self) -> None:
        """Reserve replicas for calls that run alone, but leave one to the other calls."""
        while self._suspects:
            slot = _first(self._by_load)
            call = next(iter(self._suspects))
            if slot is None or not self._may_hold(call):
                return
            del self._suspects[call]
            call.queue, call.held, slot.held_for = None, slot, call
            self._keep_for(slot, call)

    def _keep_for(self, slot: Slot, suspect: _Call) -> None:
        self._list(slot)
        if not slot.in_flight:
            self._give(slot, suspect)

    def _may_hold(self, call: _Call) -> bool:
        takes_calls = sum(map(len, self._by_load))
        waited_s = time.monotonic() - call.since
        return takes_calls > 1 or len(self._slots) == 1 or waited_s >= _SPARE_LAST_S

    def _give(self, slot: Slot, call: _Call) -> None:
        call.slot, call.queue = slot, None
        slot.in_flight += 1
        self._in_flight += 1
        self._list(slot)
        self._waiting.discard(call)
        _wake(call)

    def _give_back(self, call: _Call) -> None:
        slot = call.slot
        assert slot is not None, "only calls that were given a replica return one"
        slot.in_flight -= 1
        self._in_flight -= 1
        if slot.held_for is call:
            _let_go(slot)
        self._settle(slot)

    def _leave(self, call: _Call) -> None:
        """Take back everything that a cancelled call has."""
        self._waiting.discard(call)
        if call.slot is not None:  # given between its last look and now
            self._give_back(call)
        elif call.held is not None:
            slot = call.held
            _let_go(slot)
            self._settle(slot)
        elif call.queue is not None:
            del call.queue[call]

    def _enqueue(self, call: _Call, queue: _Queue) -> None:
        queue[call] = None
        call.queue = queue

    def _list(self, slot: Slot) -> None:
        """Move a replica to the list of its load; out of all lists, with the calls that wait for it."""
        target = self._by_load[slot.in_flight] if slot.takes_calls else None
        if target is slot.listed_in:
            return
        if slot.listed_in is not None:
            del slot.listed_in[slot]
        if target is not None:
            target[slot] = None
        slot.listed_in = target
        while target is None and slot.queue:
            self._admit(slot.queue.popitem(last=False)[0])

    def _drop(self, slot: Slot) -> None:
        if self._slots.pop(slot.replica.id, None) is not None and slot.is_up:
            self._count_down(slot)
        slot.changed.set()

    def _count_down(self, slot: Slot) -> None:
        slot.is_up = False
        self._up -= 1
        if not self._up:
            self._down_since = time.monotonic()


def _first(lists: list[OrderedDict[Slot, None]]) -> Slot | None:
    """The least busy replica of some lists."""
    return next((next(iter(slots)) for slots in lists if slots), None)


def _let_go(slot: Slot) -> None:
    assert slot.held_for is not None, "only reserved replicas are released"
    slot.held_for.held = None
    slot.held_for = None


def _wake(call: _Call) -> None:
    if call.woken is not None:
        call.woken.set()

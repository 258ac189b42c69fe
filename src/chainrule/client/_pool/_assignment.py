"""Which replica gets the next call, and which call waits. No threads, no clock: every step is told the time.

A call costs the same however many replicas there are and however many calls wait:

- Replicas that take calls are in lists by the number of calls they have, in the order in which they got to
  that number. The first of the shortest list that is not empty is the least busy one, and the one that was
  idle longest.
- A call that must wait is in one queue: that of the replica it prefers, or the common one. One that only
  prefers a replica, and does not need it, waits only while all others are full. A replica that has
  room again goes to the call that waited longest, and only that call is told.

Two invariants make this correct without a search. While a call waits for any replica, every replica that
takes calls is full. While a call waits for its replica, that replica takes calls and is full.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

# A call that may kill replicas leaves the last one that is up to the other calls for so long.
SPARE_LAST_S = 5.0


class Place:
    """A replica, as far as calls are handed out to it.

    Attributes:
        id: name of the replica.
        is_up: whether calls can be sent to it.
        is_leaving: whether it gets no more calls.
        in_flight: calls it has been given and has not answered.
        held_for: the one call that it is reserved for, if any.
        deaths: how often it had to be started again.
        queue: calls that wait for this replica, the longest wait first.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.is_up = False
        self.is_leaving = False
        self.in_flight = 0
        self.held_for: Call | None = None
        self.deaths = 0
        self.queue: _Queue = OrderedDict()
        self.listed_in: OrderedDict[Place, None] | None = None

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


class Call:
    """A call that wants a replica.

    Args:
        prefer: id of the replica it wants.
        insists: whether it waits for that one while others are free.
        alone: whether its replica has no other call at the same time, as for one that was with a replica when
            that died.

    Attributes:
        number: in the order of arrival.
        since: when it arrived.
        place: what it was given.
        queue: where it waits; `None` for one that has a replica reserved.
        held: the replica that is reserved for it.
    """

    def __init__(
        self, prefer: str | None = None, *, insists: bool = False, alone: bool = False
    ) -> None:
        self.prefer = prefer
        self.insists = insists
        self.is_suspect = alone
        self.number = 0
        self.since = 0.0
        self.place: Place | None = None
        self.queue: _Queue | None = None
        self.held: Place | None = None


_Queue = OrderedDict[Call, None]  # first in, first out, and any call can leave at once


class Assignment:
    """The replicas of one pool and the calls that run or wait.

    Args:
        depth: calls that a replica may have at once: 1, or more to hide the time of a message.
        now: the time, in seconds of any clock that never goes back.
        on_given: told of every call that is given a replica.
        on_changed: told of every replica that was lost or has left.

    Attributes:
        places: id → replica, those that start or leave included.
        waiting: calls that wait for a replica.
        in_flight: how many calls run.
        up: how many replicas are up.
        down_since: since when none has been up.
    """

    def __init__(
        self,
        depth: int,
        now: float,
        *,
        on_given: Callable[[Call], object] = lambda call: None,
        on_changed: Callable[[Place], object] = lambda place: None,
    ) -> None:
        self._depth = depth
        self._on_given, self._on_changed = on_given, on_changed
        self.places: dict[str, Place] = {}
        self.waiting: set[Call] = set()
        self.in_flight = 0
        self.up = 0
        self.down_since = now
        # Replicas that take calls, by how many they have; the last list is of those without room.
        self._by_load: list[OrderedDict[Place, None]] = [OrderedDict() for _ in range(depth + 1)]
        self._queue: _Queue = OrderedDict()
        self._suspects: _Queue = OrderedDict()
        self._numbers = itertools.count()

    # What happens

    def add(self, place: Place) -> None:
        """A replica is added; it gets calls once it is up."""
        self.places[place.id] = place

    def remove(self, place: Place, now: float) -> None:
        """A replica gets no more calls; it leaves when it has answered those it has."""
        place.is_leaving = True
        self._settle(place, now)

    def mark_up(self, place: Place, now: float) -> None:
        """A replica can be given calls."""
        if not place.is_up and self.places.get(place.id) is place:
            place.is_up = True
            self.up += 1
            self._settle(place, now)

    def mark_lost(self, place: Place, now: float) -> None:
        """A replica has died: it gets no calls until it is up again."""
        if place.is_up:  # another call may have noticed it before
            place.deaths += 1
            self._count_down(place, now)
            self._on_changed(place)
            self._settle(place, now)

    def arrive(self, call: Call, now: float) -> Place | None:
        """A call wants a replica; `None` when it has to wait."""
        call.number, call.since = next(self._numbers), now
        self._admit(call, now)
        if call.place is None:
            self.waiting.add(call)
        return call.place

    def release(self, call: Call, now: float) -> None:
        """A call is over; its replica goes to the call that waited longest."""
        place = call.place
        assert place is not None, "only calls that were given a replica return one"
        place.in_flight -= 1
        self.in_flight -= 1
        if place.held_for is call:
            _let_go(place)
        self._settle(place, now)

    def leave(self, call: Call, now: float) -> None:
        """A call that waited is not wanted any more; everything that it has is taken back."""
        self.waiting.discard(call)
        if call.place is not None:  # given between its last look and now
            self.release(call, now)
        elif call.held is not None:
            place = call.held
            _let_go(place)
            self._settle(place, now)
        elif call.queue is not None:
            del call.queue[call]

    def pass_time(self, now: float) -> None:
        """Time has passed: a call that runs alone may have waited long enough for the last replica."""
        while self._suspects:
            place = _first(self._by_load)
            call = next(iter(self._suspects))
            if place is None or not self._may_hold(call, now):
                return
            del self._suspects[call]
            call.queue, call.held, place.held_for = None, place, call
            self._keep_for(place, call, now)

    # How that is done

    def _admit(self, call: Call, now: float) -> None:
        """Give a call a replica, or a place in a queue."""
        if call.is_suspect:
            _enqueue(call, self._suspects)
            self.pass_time(now)
            return
        home = None if call.prefer is None else self.places.get(call.prefer)
        if home is not None and not home.takes_calls:
            home = None
        if home is not None and home.in_flight < self._depth:
            self._give(home, call, now)
            return
        other = None if home is not None and call.insists else _first(self._by_load[:-1])
        if other is not None:
            self._give(other, call, now)
        else:
            _enqueue(call, self._queue if home is None else home.queue)

    def _settle(self, place: Place, now: float) -> None:
        """Restore the invariants after the state of a replica has changed."""
        if place.is_leaving and not place.in_flight:
            self._drop(place, now)
        suspect = place.held_for
        if suspect is not None and suspect.place is None:
            if place.is_up and not place.is_leaving:
                self._keep_for(place, suspect, now)
                return
            _let_go(place)
            _enqueue(suspect, self._suspects)
        self._list(place, now)
        self.pass_time(now)
        while place.takes_calls and place.in_flight < self._depth:
            call = self._next_for(place)
            if call is None:
                return
            self._give(place, call, now)

    def _next_for(self, place: Place) -> Call | None:
        """The call that has waited longest for this replica or for any; it leaves its queue."""
        queues = [queue for queue in (place.queue, self._queue) if queue]
        if not queues:
            return None
        queue = min(queues, key=lambda queue: next(iter(queue)).number)
        return queue.popitem(last=False)[0]

    def _keep_for(self, place: Place, suspect: Call, now: float) -> None:
        self._list(place, now)
        if not place.in_flight:
            self._give(place, suspect, now)

    def _may_hold(self, call: Call, now: float) -> bool:
        """Whether a replica may be reserved: one is left to the other calls, or this one waited long."""
        takes_calls = sum(map(len, self._by_load))
        return takes_calls > 1 or len(self.places) == 1 or now - call.since >= SPARE_LAST_S

    def _give(self, place: Place, call: Call, now: float) -> None:
        call.place, call.queue = place, None
        place.in_flight += 1
        self.in_flight += 1
        self._list(place, now)
        self.waiting.discard(call)
        self._on_given(call)

    def _list(self, place: Place, now: float) -> None:
        """Move a replica to the list of its load; out of all lists, with the calls that wait for it."""
        target = self._by_load[place.in_flight] if place.takes_calls else None
        if target is place.listed_in:
            return
        if place.listed_in is not None:
            del place.listed_in[place]
        if target is not None:
            target[place] = None
        place.listed_in = target
        while target is None and place.queue:
            self._admit(place.queue.popitem(last=False)[0], now)

    def _drop(self, place: Place, now: float) -> None:
        if self.places.pop(place.id, None) is not None and place.is_up:
            self._count_down(place, now)
        self._on_changed(place)

    def _count_down(self, place: Place, now: float) -> None:
        place.is_up = False
        self.up -= 1
        if not self.up:
            self.down_since = now


def _first(lists: list[OrderedDict[Place, None]]) -> Place | None:
    """The least busy replica of some lists."""
    return next((next(iter(places)) for places in lists if places), None)


def _enqueue(call: Call, queue: _Queue) -> None:
    queue[call] = None
    call.queue = queue


def _let_go(place: Place) -> None:
    assert place.held_for is not None, "only reserved replicas are released"
    place.held_for.held = None
    place.held_for = None

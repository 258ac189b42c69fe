"""Which replica gets the next call, and which call waits. No threads, no clock: every step is told the time.

A call costs the same however many replicas there are and however many calls wait:

- Replicas that have room are in a `Choice`, which names the next one without a search. `LeastBusy` has lists
  by the number of calls, in the order in which replicas got to that number: the first of the first list that
  is not empty is the least busy one, and the one that was idle longest. `TwoChoices` looks at two of them,
  taken at random, and takes the less busy one. Callers that share replicas and do not know of each other's
  calls then do not all choose the same one.
- A call that must wait is in one queue: that of the replica it prefers, or the common one. One that only
  prefers a replica, and does not need it, waits only while all others are full. A replica that has
  room again goes to the call that waited longest, and only that call is told.

Two invariants make this correct without a search. While a call waits for any replica, every replica that
takes calls is full. While a call waits for its replica, that replica takes calls and is full.

Replicas that others use too (servers) may have no room or fail, although they are up:

- One that turns a call away rests until it is opened again, and is given half as many calls at once from then
  on; after as many answers as it has room for, it gets one more.
- One that fails several times in a row is ejected: it gets no calls until it is marked as up. Of the replicas
  that are up or ejected, at most half are ejected: if more fail, the cause is more likely the calls, or the
  network, than the replicas.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from random import Random

# A call that may kill replicas leaves the last one that is up to the other calls for so long.
SPARE_LAST_S = 5.0
# A replica that fails so often, without an answer in between, is ejected.
MAX_FAILURES = 3


class Place:
    """A replica, as far as calls are handed out to it.

    Attributes:
        id: name of the replica.
        is_up: whether calls can be sent to it.
        is_leaving: whether it gets no more calls.
        is_resting: whether it has turned a call away, and is not open again yet.
        is_ejected: whether it gets no calls because it fails.
        in_flight: calls it has been given and has not answered.
        limit: calls that it may have at once.
        failures: calls that failed since its last answer.
        held_for: the one call that it is reserved for, if any.
        deaths: how often it died, or was ejected.
        queue: calls that wait for this replica, the longest wait first.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.is_up = False
        self.is_leaving = False
        self.is_resting = False
        self.is_ejected = False
        self.in_flight = 0
        self.limit = 0
        self.failures = 0
        self.answers = 0  # since the limit was changed
        self.held_for: Call | None = None
        self.deaths = 0
        self.queue: _Queue = OrderedDict()
        self.listed_in: Choice | None = None
        self.load_list: OrderedDict[Place, None] = OrderedDict()  # of `LeastBusy`
        self.position = 0  # of `TwoChoices`

    @property
    def takes_calls(self) -> bool:
        """Whether it may be given calls as soon as it has room."""
        is_open = self.is_up and not self.is_leaving and not self.is_resting
        return is_open and self.held_for is None

    @property
    def state(self) -> str:
        """`starting`, `idle`, `busy`, `resting`, `ejected` or `leaving`."""
        if self.is_leaving:
            return "leaving"
        if self.is_ejected:
            return "ejected"
        if not self.is_up:
            return "starting"
        if self.is_resting:
            return "resting"
        return "busy" if self.in_flight else "idle"


class Call:
    """A call that wants a replica.

    Args:
        prefer: id of the replica it wants.
        avoid: id of a replica it does not want while there are others with room.
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
        self,
        prefer: str | None = None,
        *,
        avoid: str | None = None,
        insists: bool = False,
        alone: bool = False,
    ) -> None:
        self.prefer = prefer
        self.avoid = avoid
        self.insists = insists
        self.is_suspect = alone
        self.number = 0
        self.since = 0.0
        self.place: Place | None = None
        self.queue: _Queue | None = None
        self.held: Place | None = None


_Queue = OrderedDict[Call, None]  # first in, first out, and any call can leave at once


class Choice(ABC):
    """Replicas, and which of them gets the next call."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def add(self, place: Place) -> None:
        """Put one in."""

    @abstractmethod
    def discard(self, place: Place) -> None:
        """Take one out."""

    @abstractmethod
    def note_load(self, place: Place) -> None:
        """One of them may have another number of calls."""

    @abstractmethod
    def next(self, avoid: str | None = None) -> Place | None:
        """The one that gets the next call; `None` when there is none.

        Args:
            avoid: id of one that is taken only when there is no other to look at.
        """


class LeastBusy(Choice):
    """The replica with the fewest calls; of several, the one that was idle longest."""

    def __init__(self) -> None:
        self._by_load: list[OrderedDict[Place, None]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, place: Place) -> None:
        """Put one at the end of the list of its load."""
        place.load_list = self._list_of(place)
        place.load_list[place] = None
        self._count += 1

    def discard(self, place: Place) -> None:
        """Take one out of its list."""
        del place.load_list[place]
        self._count -= 1

    def note_load(self, place: Place) -> None:
        """Move one to the list of its load."""
        if place.load_list is not self._list_of(place):
            self.discard(place)
            self.add(place)

    def next(self, avoid: str | None = None) -> Place | None:
        """The first of the first list that is not empty: what a call may avoid is not up in such a pool."""
        return next((next(iter(places)) for places in self._by_load if places), None)

    def _list_of(self, place: Place) -> OrderedDict[Place, None]:
        while len(self._by_load) <= place.in_flight:
            self._by_load.append(OrderedDict())
        return self._by_load[place.in_flight]


class TwoChoices(Choice):
    """The less busy one of two replicas that are taken at random.

    Args:
        random: where the numbers come from.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: Place) -> None:
        """Put one at the end."""
        place.position = len(self._places)
        self._places.append(place)

    def discard(self, place: Place) -> None:
        """Put the last one in the place of one."""
        last = self._places.pop()
        if last is not place:
            self._places[place.position] = last
            last.position = place.position

    def note_load(self, place: Place) -> None:
        """The number is looked at when one is chosen."""

    def next(self, avoid: str | None = None) -> Place | None:
        """The less busy one of two, or the other one."""
        count = len(self._places)
        if count < 2:
            return self._places[0] if count else None
        first = self._random.randrange(count)
        # Without replacement: `second` is uniform over the count - 1 others, because every number from
        # `first` on is moved up by one. Two draws that may coincide would compare a replica with itself once
        # in `count` calls.
        second = self._random.randrange(count - 1)
        a, b = self._places[first], self._places[second + (second >= first)]
        if avoid in (a.id, b.id):
            return b if a.id == avoid else a
        return a if a.in_flight <= b.in_flight else b


class Assignment:
    """The replicas of one pool and the calls that run or wait.

    Args:
        depth: calls that a replica may have at once: 1, or more to hide the time of a message.
        now: the time, in seconds of any clock that never goes back.
        choice: which of the replicas with room gets a call: `LeastBusy` when not given.
        on_given: told of every call that is given a replica.
        on_changed: told of every replica that was lost or has left.

    Attributes:
        places: id → replica, those that start or leave included.
        waiting: calls that wait for a replica.
        in_flight: how many calls run.
        up: how many replicas are up.
        ejected: replicas that are ejected, the first one first.
        changes: how often a replica came up or went down.
        down_since: since when none has been up.
    """

    def __init__(
        self,
        depth: int,
        now: float,
        *,
        choice: Choice | None = None,
        on_given: Callable[[Call], object] = lambda call: None,
        on_changed: Callable[[Place], object] = lambda place: None,
    ) -> None:
        self._depth = depth
        self._on_given, self._on_changed = on_given, on_changed
        self.places: dict[str, Place] = {}
        self.waiting: set[Call] = set()
        self.in_flight = 0
        self.up = 0
        self.ejected: OrderedDict[Place, None] = OrderedDict()
        self.changes = 0
        self.down_since = now
        # Replicas that take calls: those with room, and the others.
        self._open = LeastBusy() if choice is None else choice
        self._full = LeastBusy()
        self._queue: _Queue = OrderedDict()
        self._suspects: _Queue = OrderedDict()
        self._numbers = itertools.count()

    # What happens

    def add(self, place: Place) -> None:
        """A replica is added; it gets calls once it is up."""
        place.limit = self._depth
        self.places[place.id] = place

    def remove(self, place: Place, now: float) -> None:
        """A replica gets no more calls; it leaves when it has answered those it has."""
        place.is_leaving = True
        self._settle(place, now)
        self._keep_half(now)

    def mark_up(self, place: Place, now: float) -> None:
        """A replica can be given calls."""
        if not place.is_up and self.places.get(place.id) is place:
            self._readmit(place)
            place.is_up, place.is_resting, place.failures = True, False, 0
            self.up += 1
            self.changes += 1
            self._settle(place, now)

    def mark_lost(self, place: Place, now: float) -> bool:
        """A replica has died: it gets no calls until it is up again. Whether that is news."""
        was_up = place.is_up  # another call may have noticed it before
        self._readmit(place)
        if was_up:
            self._take_down(place, now)
        self._keep_half(now)
        return was_up

    def note_answer(self, place: Place, now: float) -> None:
        """A replica has answered; after as many answers as it has room for, it has room for one more."""
        place.failures = 0
        place.answers += 1
        # Additive increase, as in TCP: one more call per round of `limit` answers. Together with the halving
        # in `turn_away`, several clients of one replica move towards equal shares of what it has room for.
        if place.answers >= place.limit < self._depth:
            place.limit, place.answers = place.limit + 1, 0
            self._settle(place, now)

    def note_failure(self, place: Place, now: float) -> bool:
        """A call has failed, and the replica may be the cause. Whether it is ejected for that."""
        place.failures += 1
        # With e ejected and u up, ejecting this one gives e + 1 and u - 1. At most half are ejected
        # afterwards if e + 1 <= u - 1, that is, e + 2 <= u.
        if place.failures < MAX_FAILURES or not place.is_up or len(self.ejected) + 2 > self.up:
            return False
        place.is_ejected = True
        self.ejected[place] = None
        self._take_down(place, now)
        return True

    def turn_away(self, place: Place, now: float) -> bool:
        """A replica has no room although it should: it rests until `reopen`. Whether that is news."""
        if place.is_resting or not place.is_up:
            return False
        place.is_resting = True
        place.limit, place.answers = max(1, place.limit // 2), 0
        self._settle(place, now)
        return True

    def reopen(self, place: Place, now: float) -> None:
        """A replica has rested."""
        if place.is_resting:
            place.is_resting = False
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
        # The three cases exclude each other: a call has a replica, or one reserved, or a place in one queue.
        # A call that leaves must give back which of them it has, or that replica would never be given to
        # another call.
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
            place = self._open.next() or self._full.next()
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
        # A replica that takes no calls is no home: waiting for it could be for ever, and its residuals are
        # gone with it if it died. The second invariant of the module rests on this.
        home = None if call.prefer is None else self.places.get(call.prefer)
        if home is not None and not home.takes_calls:
            home = None
        if home is not None and home.in_flight < home.limit:
            self._give(home, call, now)
            return
        other = None if home is not None and call.insists else self._open.next(call.avoid)
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
        # `_give` may fill the replica, and giving a call to it changes no other replica, so this restores the
        # first invariant: afterwards it is full, or no call waits that it could take.
        while place.takes_calls and place.in_flight < place.limit:
            call = self._next_for(place)
            if call is None:
                return
            self._give(place, call, now)

    def _next_for(self, place: Place) -> Call | None:
        """The call that has waited longest for this replica or for any; it leaves its queue."""
        queues = [queue for queue in (place.queue, self._queue) if queue]
        if not queues:
            return None
        # Each queue is in the order of arrival, so its first call has waited longest; comparing the two first
        # ones gives the order of arrival over both.
        queue = min(queues, key=lambda queue: next(iter(queue)).number)
        return queue.popitem(last=False)[0]

    def _keep_for(self, place: Place, suspect: Call, now: float) -> None:
        self._list(place, now)
        if not place.in_flight:
            self._give(place, suspect, now)

    def _may_hold(self, call: Call, now: float) -> bool:
        """Whether a replica may be reserved: one is left to the other calls, or this one waited long."""
        takes_calls = len(self._open) + len(self._full)
        return takes_calls > 1 or len(self.places) == 1 or now - call.since >= SPARE_LAST_S

    def _give(self, place: Place, call: Call, now: float) -> None:
        call.place, call.queue = place, None
        place.in_flight += 1
        self.in_flight += 1
        self._list(place, now)
        self.waiting.discard(call)
        self._on_given(call)

    def _list(self, place: Place, now: float) -> None:
        """Put a replica where its load belongs; out of all lists, with the calls that wait for it."""
        target = None
        if place.takes_calls:
            target = self._open if place.in_flight < place.limit else self._full
        if target is not place.listed_in:
            if place.listed_in is not None:
                place.listed_in.discard(place)
            if target is not None:
                target.add(place)
            place.listed_in = target
        elif target is not None:
            target.note_load(place)
        # Calls that waited for this replica are admitted again, without a home now. The replica is out of all
        # lists already, so none of them comes back to it, and the loop ends.
        while target is None and place.queue:
            self._admit(place.queue.popitem(last=False)[0], now)

    def _drop(self, place: Place, now: float) -> None:
        self._readmit(place)
        if self.places.pop(place.id, None) is not None and place.is_up:
            self._count_down(place, now)
        self._on_changed(place)

    def _take_down(self, place: Place, now: float) -> None:
        place.deaths += 1
        self._count_down(place, now)
        self._on_changed(place)
        self._settle(place, now)

    def _count_down(self, place: Place, now: float) -> None:
        place.is_up = False
        self.up -= 1
        self.changes += 1
        if not self.up:
            self.down_since = now

    def _readmit(self, place: Place) -> None:
        place.is_ejected = False
        self.ejected.pop(place, None)

    def _keep_half(self, now: float) -> None:
        """Bring ejected replicas back while more than half of those that can be reached are ejected."""
        # Each step moves one from the ejected to those that are up: e - u falls by two, so the loop ends.
        while len(self.ejected) > self.up:
            self.mark_up(next(iter(self.ejected)), now)


def _enqueue(call: Call, queue: _Queue) -> None:
    queue[call] = None
    call.queue = queue


def _let_go(place: Place) -> None:
    assert place.held_for is not None, "only reserved replicas are released"
    place.held_for.held = None
    place.held_for = None

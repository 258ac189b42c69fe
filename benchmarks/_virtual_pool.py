"""Pools in virtual time: the dispatcher of real pools on a clock that jumps from event to event.

`chainrule.client._pool._assignment` decides which replica gets a call and which call waits; it has no threads
and no clock. Here it is told of random arrivals (Poisson), random durations (exponential) and deaths, in the
order of a heap of events. So ten thousand replicas need no machine but this one, and what happens does not
depend on how busy this machine is.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chainrule.client._pool._assignment import SPARE_LAST_S, Assignment, Call, Place


@dataclass(frozen=True)
class Situation:
    """What is simulated.

    Attributes:
        replicas: how many there are; all are up at first.
        calls: how many arrive.
        load: their rate, as a share of what the replicas can answer.
        service_s: how long one takes on average.
        deaths_per_s: how often a replica that is up dies.
        restart_s: how long it is gone then.
        at_home: share of calls that prefer the replica of an earlier call, as gradients do.
        seed: of the random numbers.
    """

    replicas: int
    calls: int
    load: float = 0.8
    service_s: float = 0.01
    deaths_per_s: float = 0.0
    restart_s: float = 5.0
    at_home: float = 0.0
    seed: int = 0


@dataclass
class Outcome:
    """What has happened.

    Attributes:
        waits_s: of each call that was answered, from its arrival until its last replica had it.
        seconds: of virtual time, until the last answer.
        given: how often a replica was given a call.
        deaths: of replicas.
        at_home: how many calls got the replica that they prefer.
        most_waiting: the longest queue.
    """

    waits_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    given: int = 0
    deaths: int = 0
    at_home: int = 0
    most_waiting: int = 0

    def wait_s(self, share: float) -> float:
        """The wait that this share of the calls does not exceed."""
        ordered = sorted(self.waits_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class CountedPlace(Place):
    """A replica that counts how often anything of any of them is looked at.

    Attributes:
        looks: how often that was, since this process began.
    """

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        CountedPlace.looks += 1
        return super().__getattribute__(name)


def simulate(situation: Situation, make_place: Callable[[str], Place] = Place) -> Outcome:
    """Run one situation until every call is answered."""
    return _Simulation(situation, make_place).run()


class _Simulation:
    def __init__(self, situation: Situation, make_place: Callable[[str], Place]) -> None:
        self._situation = situation
        self._random = random.Random(situation.seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        # When the caller asked; a call that is repeated after a death is another call for the dispatcher.
        self._asked: dict[Call, float] = {}
        self._running: dict[Place, list[Call]] = {}
        self._arrived = 0
        self._last_home: str | None = None
        self._outcome = Outcome()
        self._assignment = Assignment(1, 0.0, on_given=self._begin)
        for number in range(situation.replicas):
            place = make_place(str(number))
            self._assignment.add(place)
            self._running[place] = []
            self._come_up(place)

    def run(self) -> Outcome:
        self._after(self._gap_s(), self._arrive)
        while len(self._outcome.waits_s) < self._situation.calls:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        self._outcome.seconds = self._now
        return self._outcome

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), happen))

    def _gap_s(self) -> float:
        situation = self._situation
        per_s = situation.load * situation.replicas / situation.service_s
        return self._random.expovariate(per_s)

    # What happens

    def _arrive(self) -> None:
        self._arrived += 1
        if self._arrived < self._situation.calls:
            self._after(self._gap_s(), self._arrive)
        prefers = self._random.random() < self._situation.at_home
        self._ask(Call(prefer=self._last_home if prefers else None), since=self._now)
        self._outcome.most_waiting = max(self._outcome.most_waiting, len(self._assignment.waiting))

    def _ask(self, call: Call, since: float) -> None:
        self._asked[call] = since
        self._assignment.arrive(call, self._now)

    def _begin(self, call: Call) -> None:
        """A replica was given a call."""
        place: Any = call.place
        self._outcome.given += 1
        self._outcome.at_home += call.prefer is not None and call.prefer == place.id
        self._last_home = place.id
        self._running[place].append(call)
        service_s = self._random.expovariate(1 / self._situation.service_s)
        began = self._now
        self._after(service_s, lambda: self._end(call, place, began))

    def _end(self, call: Call, place: Place, began: float) -> None:
        since = self._asked.pop(call, None)
        if since is None:  # its replica died before
            return
        self._outcome.waits_s.append(began - since)
        self._running[place].remove(call)
        self._assignment.release(call, self._now)

    def _die(self, place: Place) -> None:
        self._outcome.deaths += 1
        self._assignment.mark_lost(place, self._now)
        lost, self._running[place] = self._running[place], []
        for call in lost:
            since = self._asked.pop(call)
            self._assignment.release(call, self._now)
            # It may be what killed the replica: it gets one that has no other call.
            self._ask(Call(alone=True), since)
            self._after(SPARE_LAST_S, lambda: self._assignment.pass_time(self._now))
        self._after(self._situation.restart_s, lambda: self._come_up(place))

    def _come_up(self, place: Place) -> None:
        self._assignment.mark_up(place, self._now)
        if self._situation.deaths_per_s:
            life_s = self._random.expovariate(self._situation.deaths_per_s)
            self._after(life_s, lambda: self._die(place))

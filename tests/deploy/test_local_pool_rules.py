"""The rules of every pool, with replicas that are plain objects: who gets a call, who is blamed, who goes."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.client import Ticket
from chainrule.client._pool import SPARE_LAST_S, Assignment, Call, ForwardPasses, Place, Slot
from chainrule.client.internal import (
    Dispatcher,
    PoolTransport,
    Replica,
    ReplicaLostError,
    fingerprint,
)
from chainrule.deploy._scaling import Autoscaler
from chainrule.errors import DefinitionError, InputError, TransportError
from waiting import wait_until

HANG_S = 120  # every limit here only ends what hangs
DOCUMENT = {
    "paths": {"/apply": {}, "/vector_jacobian_product": {}},
    "info": {"title": "fake", "version": "1"},
}


class FakeReplica(Replica):
    """Answers with its id; dies of payloads that say so, or as often as it was told to."""

    def __init__(self, id, deaths=0, *, residuals=False):
        self.id = id
        self.residuals = residuals
        self.deaths = deaths
        self.starts = 0
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.stopped = threading.Event()

    def start(self):
        self.starts += 1
        stated = {"vector_jacobian_product": {"status": "native", "residuals": self.residuals}}
        return DOCUMENT | {"x-capabilities": stated}

    def call(self, endpoint, payload, *, run_id=None, ticket=None):
        self.gate.wait(HANG_S)
        self.calls.append(payload["inputs"])
        if payload["inputs"] == "poison" or self.deaths:
            self.deaths = max(0, self.deaths - 1)
            raise ReplicaLostError("gone")
        return self.id

    def call_many(self, endpoint, payloads, *, ticket=None):
        return [self.call(endpoint, payload) for payload in payloads]

    def stop(self):
        self.stopped.set()


def pool_of(*replicas, **settings):
    settings = {"depth": 1, "idempotent": True, "max_deaths": 3} | settings
    pool = PoolTransport(
        "fakes",
        max_replicas=len(replicas),
        startup_timeout_s=settings.pop("patience", HANG_S),
        **settings,
    )
    for replica in replicas:
        pool.add_replica(replica)
    pool.wait_until_ready(len(replicas))
    return pool


def ask(pool, inputs, endpoint="apply"):
    return pool.call(endpoint, {"inputs": inputs})


def test_the_least_busy_replica_is_asked_in_turns():
    pool = pool_of(FakeReplica("a"), FakeReplica("b"), FakeReplica("c"))
    assert sorted(ask(pool, k) for k in range(6)) == ["a", "a", "b", "b", "c", "c"]


def test_products_at_one_point_are_computed_at_the_same_time():
    """No residuals are declared: while its replica is busy, a gradient goes to one that is free."""
    a, b = FakeReplica("a"), FakeReplica("b")
    pool = pool_of(a, b)
    home = {"a": a, "b": b}[ask(pool, 1.5)]
    other = b if home is a else a
    home.gate.clear()
    busy = threading.Thread(target=ask, args=(pool, 1.5, "vector_jacobian_product"))
    busy.start()
    wait_until(lambda: any(replica["in_flight"] for replica in pool.status()["replicas"]))
    assert ask(pool, 1.5, "vector_jacobian_product") == other.id
    home.gate.set()
    busy.join()
    assert ask(pool, 1.5, "vector_jacobian_product") == home.id


def test_a_gradient_waits_for_its_replica_and_goes_elsewhere_when_that_is_gone():
    a, b = FakeReplica("a", residuals=True), FakeReplica("b", residuals=True)
    pool = pool_of(a, b)
    home = {"a": a, "b": b}[ask(pool, 1.5)]
    assert ask(pool, 2.5) != home.id
    for _ in range(3):
        assert ask(pool, 1.5, "vector_jacobian_product") == home.id
    home.gate.clear()
    busy = threading.Thread(target=ask, args=(pool, 1.5, "vector_jacobian_product"))
    busy.start()
    found = []
    behind = threading.Thread(
        target=lambda: found.append(ask(pool, 1.5, "vector_jacobian_product"))
    )
    behind.start()
    wait_until(lambda: pool.status()["waiting"])
    home.gate.set()
    busy.join()
    behind.join()
    assert found == [home.id]
    home.deaths = 1
    assert ask(pool, 1.5, "vector_jacobian_product") in "ab"
    assert pool.status()["affinity"] == {"hits": 6, "misses": 0}


def test_replicas_go_with_a_pool_that_nobody_holds():
    a, b = FakeReplica("a"), FakeReplica("b")
    pool = pool_of(a, b)
    assert ask(pool, 1.5) in "ab"
    assert not a.stopped.is_set()
    del pool
    assert a.stopped.wait(HANG_S)
    assert b.stopped.wait(HANG_S)


def test_whoever_was_nearby_is_not_blamed():
    """Two calls are with one replica when it dies: both are tried again, alone, and one of them is poison."""
    a = FakeReplica("a")
    pool = pool_of(a, depth=2)
    outcomes = {}

    def work(inputs):
        try:
            outcomes[inputs] = ask(pool, inputs)
        except InputError as error:
            outcomes[inputs] = error.code, error.details["deaths"]

    a.gate.clear()
    threads = [threading.Thread(target=work, args=(inputs,)) for inputs in ("poison", "fine")]
    for thread in threads:
        thread.start()
    wait_until(lambda: pool.status()["replicas"][0]["in_flight"] == 2)
    a.deaths = 2
    a.gate.set()
    for thread in threads:
        thread.join()
    assert outcomes == {"poison": ("poison_input", 3), "fine": "a"}
    assert a.calls.count("poison") == 3
    assert a.calls.count("fine") == 2


def test_a_suspect_leaves_the_last_replica_to_others():
    dispatcher = Dispatcher(depth=1, patience_s=HANG_S)
    a, b = Slot(FakeReplica("a")), Slot(FakeReplica("b"))
    for slot in (a, b):
        dispatcher.add(slot)
    dispatcher.mark_up(a)
    ticket = Ticket()
    found = []

    def suspect():
        with dispatcher.lease(alone=True, ticket=ticket) as slot:
            found.append(slot)

    thread = threading.Thread(target=suspect)
    thread.start()
    wait_until(lambda: dispatcher.waiting)
    with dispatcher.lease(ticket=Ticket()) as slot:
        assert slot is a
    assert not found
    dispatcher.mark_up(b)
    thread.join(HANG_S)
    assert len(found) == 1


def places(count, **settings):
    """An assignment of so many replicas that are up, at the time 0, and what it tells."""
    told = []
    assignment = Assignment(**{"depth": 1, "now": 0.0, "on_given": told.append} | settings)
    found = [Place(str(number)) for number in range(count)]
    for place in found:
        assignment.add(place)
        assignment.mark_up(place, 0.0)
    return assignment, found, told


def test_a_suspect_does_not_wait_for_ever():
    """The other replica never comes up: after a time the suspect may have the last one."""
    assignment, (a,), told = places(1)
    b = Place("b")
    assignment.add(b)
    suspect = Call(alone=True)
    assert assignment.arrive(suspect, 0.0) is None
    assignment.pass_time(0.99 * SPARE_LAST_S)
    assert suspect.place is None
    assignment.pass_time(SPARE_LAST_S)
    assert told == [suspect]
    assert suspect.place is a
    assignment.release(suspect, SPARE_LAST_S)
    assignment.remove(b, SPARE_LAST_S)  # and of a pool of one it has the only one at once
    assert assignment.arrive(Call(alone=True), SPARE_LAST_S) is a


@pytest.mark.parametrize("depth", [1, 3])
def test_ten_thousand_replicas_in_virtual_time(depth):
    """Calls come faster than they are answered: the queue is first in, first out, and no replica idles."""
    assignment, found, told = places(10_000, depth=depth)
    room = depth * len(found)
    calls = [Call() for _ in range(room + 500)]
    for number, call in enumerate(calls):
        assignment.arrive(call, float(number))
    assert {place.in_flight for place in found} == {depth}
    assert assignment.waiting == set(calls[room:])
    for number, over in enumerate(calls[:500]):
        told.clear()
        assignment.release(over, float(len(calls) + number))
        assert told == [calls[room + number]], "one call is told, the one that waited longest"
        assert told[0].place is over.place
    assert (len(assignment.waiting), assignment.in_flight) == (0, room)


def test_calls_for_a_replica_that_dies_keep_their_order():
    assignment, (a, b), told = places(2)
    first = [Call("0"), Call("1")]
    behind = [Call("0", insists=True) for _ in range(3)]
    for call in (*first, *behind):
        assignment.arrive(call, 1.0)
    assignment.mark_lost(a, 2.0)
    assert (assignment.up, a.deaths, a.state) == (1, 1, "starting")
    for over in (first[1], behind[0], behind[1]):
        assignment.release(over, 3.0)
    assert told == [*first, *behind]
    assert behind[2].place is b


class CountedSlot(Slot):
    """Counts how often anything of it is looked at."""

    looks = 0

    def __getattribute__(self, name):
        CountedSlot.looks += 1
        return super().__getattribute__(name)


def full_pool(size, **settings):
    """A dispatcher of so many replicas that are up."""
    dispatcher = Dispatcher(**({"depth": 1, "patience_s": HANG_S} | settings))
    for number in range(size):
        slot = CountedSlot(FakeReplica(str(number)))
        dispatcher.add(slot)
        dispatcher.mark_up(slot)
    return dispatcher


def looks_per_call(size, calls=20, **wanted):
    dispatcher = full_pool(size, depth=2)
    before = CountedSlot.looks
    for _ in range(calls):
        with dispatcher.lease(ticket=Ticket(), **wanted):
            pass
    return (CountedSlot.looks - before) / calls


@pytest.mark.parametrize("wanted", [{}, {"prefer": "7"}, {"alone": True}], ids=str)
def test_a_call_costs_the_same_in_a_large_pool(wanted):
    assert looks_per_call(3000, **wanted) == looks_per_call(30, **wanted)


def looks_per_waiting_call(size, waiting):
    """Every replica is busy and so many calls wait; each replica that has room wakes one of them."""
    dispatcher = full_pool(size)
    tickets = [Ticket() for _ in range(size)]
    held = [dispatcher.lease(ticket=ticket) for ticket in tickets]
    for lease in held:
        lease.__enter__()
    done = []

    def call(number):
        with dispatcher.lease(ticket=Ticket()):
            done.append(number)

    threads = []
    for number in range(waiting):
        threads.append(threading.Thread(target=call, args=(number,)))
        threads[-1].start()
        wait_until(lambda number=number: dispatcher.waiting > number)
    before = CountedSlot.looks
    held[0].__exit__(None, None, None)  # one replica, which goes from one call to the next
    for thread in threads:
        thread.join(HANG_S)
    assert done == list(range(waiting)), "first come, first served"
    return (CountedSlot.looks - before) / (waiting + 1)


def test_a_call_that_waits_costs_the_same_however_many_wait():
    few = looks_per_waiting_call(size=3, waiting=4)
    assert looks_per_waiting_call(size=3, waiting=64) <= 1.5 * few
    assert looks_per_waiting_call(size=300, waiting=4) <= 1.5 * few


def test_whatever_happens_no_call_is_lost_and_no_replica_has_too_many():
    """Threads that lease, want a home, want to be alone or give up, while replicas die and come back."""
    depth = 2
    dispatcher = Dispatcher(depth=depth, patience_s=HANG_S)
    slots = [Slot(FakeReplica(str(number))) for number in range(4)]
    for slot in slots:
        dispatcher.add(slot)
        dispatcher.mark_up(slot)
    lock, is_over, problems = threading.Lock(), threading.Event(), []
    inside = {slot: [] for slot in slots}

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(60):
            alone, ticket = bool(draw.random() < 0.2), Ticket()
            prefer = str(draw.integers(4)) if draw.random() < 0.5 else None
            if draw.random() < 0.1:
                threading.Timer(0.001, ticket.cancel).start()
            try:
                with dispatcher.lease(prefer=prefer, alone=alone, ticket=ticket) as slot:
                    with lock:
                        inside[slot].append(alone)
                        if len(inside[slot]) > depth or (
                            any(inside[slot]) and len(inside[slot]) > 1
                        ):
                            problems.append(list(inside[slot]))
                    if draw.random() < 0.2:
                        dispatcher.mark_lost(slot)
                    with lock:
                        inside[slot].remove(alone)
            except TransportError as error:
                if error.code != "cancelled":
                    problems.append(error)

    def revive():
        while not is_over.is_set():
            for slot in slots:
                dispatcher.mark_up(slot)
            is_over.wait(0.0005)

    reviver = threading.Thread(target=revive)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in (reviver, *threads):
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    is_over.set()
    reviver.join()
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []
    assert (dispatcher.waiting, dispatcher.load) == (0, 0)
    assert dispatcher.up == sum(slot.is_up for slot in slots)


def test_a_group_that_dies_is_sorted_out_one_by_one():
    pool = pool_of(FakeReplica("a"), FakeReplica("b"))
    payloads = [{"inputs": "poison" if k == 2 else k} for k in range(5)]
    answers = pool.call_many("apply", payloads)
    assert [answer in ("a", "b") for answer in answers] == [True, True, False, True, True]
    assert answers[2].code == "poison_input"


def test_calls_that_must_not_run_twice():
    a = FakeReplica("a", deaths=1)
    pool = pool_of(a, idempotent=False, depth=2)
    assert pool.max_concurrency == 1
    with pytest.raises(ReplicaLostError, match="not repeated"):
        ask(pool, 1)
    assert ask(pool, 1) == "a"
    assert a.calls == [1, 1]
    assert a.starts == 2


def test_no_replica_comes_up():
    class Broken(FakeReplica):
        def start(self):
            raise TransportError("died while loading", code="worker_crashed")

    class Undefined(FakeReplica):
        def start(self):
            raise DefinitionError("no such file")

    class Silent(FakeReplica):
        def start(self):
            self.stopped.wait(HANG_S)
            return DOCUMENT

    with pytest.raises(TransportError, match="died while loading"):
        pool_of(Broken("a"))
    with pytest.raises(DefinitionError):
        pool_of(Undefined("a"))
    with pytest.raises(TransportError) as caught:
        pool_of(Silent("a"), patience=0.05)
    assert caught.value.code == "pool_unavailable"


def test_a_pool_that_lost_all_replicas_says_so():
    class OneLife(FakeReplica):
        def start(self):
            if self.starts:
                self.stopped.wait(HANG_S)
            return super().start()

    pool = pool_of(OneLife("a", deaths=1), patience=0.3)
    with pytest.raises(TransportError) as caught:
        ask(pool, 1)
    assert caught.value.code == "pool_unavailable"
    assert pool.health()["status"] == "degraded"


def test_closing_lets_nobody_wait():
    a = FakeReplica("a")
    pool = pool_of(a)
    a.gate.clear()
    threading.Thread(target=ask, args=(pool, 1), daemon=True).start()
    wait_until(lambda: pool.status()["replicas"][0]["in_flight"])
    threading.Timer(0.05, pool.close).start()
    with pytest.raises(TransportError) as caught:
        ask(pool, 2)
    assert caught.value.code == "closed"
    a.gate.set()


def test_growing_at_once_and_shrinking_slowly():
    now = 0.0
    scaler = Autoscaler(1, 4, calls_per_replica=2, quiet_s=10, clock=lambda: now)
    assert scaler.target(1, 0) == 1
    assert scaler.target(1, 5) == 3
    assert scaler.target(3, 100) == 4
    assert scaler.target(4, 2) == 4  # the quiet begins
    now = 9.0
    assert scaler.target(4, 2) == 4
    now = 10.0
    assert scaler.target(4, 2) == 3
    now = 19.0
    assert scaler.target(3, 2) == 3
    assert scaler.target(3, 6) == 3  # and ends
    now = 25.0
    assert scaler.target(3, 0) == 3
    now = 35.0
    assert scaler.target(3, 0) == 2


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 3), st.integers(0, 5))
def test_the_size_stays_within_its_bounds(loads, minimum, extra):
    clock = iter(range(0, 10_000, 7))
    scaler = Autoscaler(minimum, minimum + extra, clock=lambda: next(clock))
    size = minimum
    for load in loads:
        size = scaler.target(size, load)
        assert minimum <= size <= minimum + extra
        assert size >= min(load, minimum + extra)


def test_fingerprints_tell_inputs_apart():
    x = np.arange(3.0)
    points = [
        {"x": x},
        {"x": x + 1},
        {"x": x.astype(np.float32)},
        {"x": x.reshape(1, 3)},
        {"y": x},
        {"x": x, "mode": "a"},
        {"x": x, "mode": "b"},
        {"x": [x]},
    ]
    assert len({fingerprint(point) for point in points}) == len(points)
    assert fingerprint({"x": x}) == fingerprint({"x": x.copy()})


def test_only_gradients_after_a_forward_pass_have_a_home():
    passes = ForwardPasses()
    passes.note("jacobian", b"1", "a")
    passes.note("apply", b"2", "b")
    assert passes.replica_for("vector_jacobian_product", b"1") is None
    assert passes.replica_for("vector_jacobian_product", b"2") == "b"
    assert passes.replica_for("apply", b"2") is None
    assert passes.counts == {"hits": 1, "misses": 1}

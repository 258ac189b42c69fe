"""The rules of every pool, with replicas that are plain objects: who gets a call, who is blamed, who goes."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule._errors import DefinitionError, InputError, TransportError
from chainrule.client import Ticket
from chainrule.deploy._pool import (
    Affinity,
    Autoscaler,
    Dispatcher,
    PoolTransport,
    Replica,
    ReplicaLostError,
    Slot,
    fingerprint,
)

DOCUMENT = {
    "paths": {"/apply": {}, "/vector_jacobian_product": {}},
    "info": {"title": "fake", "version": "1"},
}


class FakeReplica(Replica):
    """Answers with its id; dies of payloads that say so, or as often as it was told to."""

    def __init__(self, id, deaths=0):
        self.id = id
        self.deaths = deaths
        self.starts = 0
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.stopped = threading.Event()

    def start(self):
        self.starts += 1
        return DOCUMENT

    def call(self, endpoint, payload, *, run_id=None, ticket=None):
        self.gate.wait(10)
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
        startup_timeout_s=settings.pop("patience", 5),
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


def test_a_gradient_waits_for_its_replica_and_goes_elsewhere_when_that_is_gone():
    a, b = FakeReplica("a"), FakeReplica("b")
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
    while not pool.status()["waiting"]:
        time.sleep(0.001)
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
    assert a.stopped.wait(10)
    assert b.stopped.wait(10)


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
    while pool.status()["replicas"][0]["in_flight"] < 2:
        time.sleep(0.001)
    a.deaths = 2
    a.gate.set()
    for thread in threads:
        thread.join()
    assert outcomes == {"poison": ("poison_input", 3), "fine": "a"}
    assert a.calls.count("poison") == 3
    assert a.calls.count("fine") == 2


def test_a_suspect_leaves_the_last_replica_to_others():
    dispatcher = Dispatcher(depth=1, patience_s=5)
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
    while not dispatcher.waiting:
        time.sleep(0.001)
    with dispatcher.lease(ticket=Ticket()) as slot:
        assert slot is a
    assert not found
    dispatcher.mark_up(b)
    thread.join(5)
    assert len(found) == 1


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
            return time.sleep(8) or DOCUMENT

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
                time.sleep(8)
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
    while not pool.status()["replicas"][0]["in_flight"]:
        time.sleep(0.001)
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
    affinity = Affinity()
    affinity.note("jacobian", b"1", "a")
    affinity.note("apply", b"2", "b")
    assert affinity.home("vector_jacobian_product", b"1") is None
    assert affinity.home("vector_jacobian_product", b"2") == "b"
    assert affinity.home("apply", b"2") is None
    assert affinity.counts == {"hits": 1, "misses": 1}

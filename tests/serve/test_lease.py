"""Clients that a worker answers itself: everything that the server guarantees still holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest

from chainrule.runtime._codec import decode_frames, encode_frames
from chainrule.runtime._samehost import (
    CallSlot,
    Segment,
    SegmentCache,
    connect,
    receive_message,
    send_message,
)
from chainrule.serve._calls import CallError
from chainrule.serve._desk import Desk
from chainrule.serve._direct import DirectClients
from chainrule.serve._lease import Lease
from chainrule.serve._pool import Counters
from chainrule.serve._traffic import Traffic

FRAMES = "application/vnd.chainrule.frames"


class Caller:
    """A client that numbers its calls, so that a worker may be lent to it."""

    def __init__(self, served) -> None:
        offer = served.get("/same-host").tree
        self.connection = connect(offer["address"], timeout_s=30)
        self.received = SegmentCache()
        self.number = 0
        send_message(self.connection, {"op": "hello", "secret": offer["secret"]})
        assert receive_message(self.connection).header["status"] == 200

    def send(self, action="double", seconds=0.0, x=(1.0,), segment=None, path="/apply", **header):
        self.number += 1
        tree = {"inputs": {"x": np.asarray(x, float), "action": action, "seconds": seconds}}
        frames = encode_frames(tree)
        header = {"path": path, "content_type": FRAMES, "accept": FRAMES, **header}
        header["number"] = self.number
        if segment is None:
            send_message(self.connection, header, frames.pieces)
            return
        frames.write_into(segment.array(frames.nbytes))
        header["segment"] = [segment.key, frames.nbytes]
        send_message(self.connection, header, (), [segment.descriptor])

    def receive(self):
        while True:
            message = receive_message(self.connection)
            if message is None:
                return None, None
            if message.header.get("number", self.number) == self.number:
                break
        body = message.body
        if "segment" in message.header:
            key, nbytes = message.header["segment"]
            body = self.received.get(key, message.descriptors[0]).array(nbytes)
        is_frames = message.header["content_type"] == FRAMES
        return message.header, decode_frames(body) if is_frames else bytes(body)

    def call(self, *args, **kwargs):
        self.send(*args, **kwargs)
        return self.receive()

    def become_direct(self):
        """A worker is lent after a call, unless it was called back just before."""
        for _ in range(4):
            assert self.call()[0]["status"] == 200
            time.sleep(0.05)
        return self


@pytest.fixture
def direct(any_served):
    caller = Caller(any_served)
    with contextlib.closing(caller.connection):
        yield caller.become_direct()


@pytest.fixture(scope="module")
def single(start_server):
    """One worker, one place in the queue, calls of at most two seconds."""
    return start_server(workers=1, max_queue=1, timeout_s=2.0)


def direct_caller(served):
    return contextlib.closing(_Closing(served))


class _Closing(Caller):
    def __init__(self, served) -> None:
        super().__init__(served)
        self.become_direct()

    def close(self) -> None:
        self.connection.close()


def test_the_server_does_not_see_the_calls_but_counts_them(any_served, wait_until):
    with direct_caller(any_served) as caller:
        before = any_served.metric("calls_answered_total")
        for i in range(50):
            _, tree = caller.call(x=[i])
            np.testing.assert_array_equal(tree["y"], [2.0 * i])
        wait_until(lambda: any_served.metric("calls_answered_total") >= before + 50)


def test_a_lent_worker_is_busy_while_it_computes(single, wait_until):
    def state():
        return single.get("/status").tree["workers"][0]["state"]

    with direct_caller(single) as caller:
        assert state() == "idle"
        caller.send("sleep", seconds=0.5)
        wait_until(lambda: state() == "busy")
        assert caller.receive()[0]["status"] == 200
        wait_until(lambda: state() == "idle")


def test_large_bodies(direct):
    segment = Segment.create("mine", 2_000_000)
    keys, last = set(), []
    for i in range(6):
        x = np.full(200_000, float(i))
        header, tree = direct.call(x=x, segment=segment, release=last)
        assert (header["status"], header["held"]) == (200, False)
        np.testing.assert_array_equal(tree["y"], 2 * x)
        del tree
        last = [header["segment"][0]]
        keys.add(last[0])
    assert len(keys) <= 2


def test_memory_survives_the_way_to_the_server_and_back(direct, any_served):
    """Answers stay what they are while the lease ends and begins again."""
    kept = []
    for i in range(6):
        x = np.full(50_000, float(i))
        header, tree = direct.call(x=x, segment=Segment.create(f"s{i}", 1_000_000))
        kept.append((header["segment"][0], tree["y"], 2 * x))
        assert any_served.apply().status == 200
    for _, found, expected in kept:
        np.testing.assert_array_equal(found, expected)
    assert len({key for key, _, _ in kept}) == 6
    keys = [key for key, _, _ in kept]
    kept.clear()
    assert direct.call(release=keys)[0]["status"] == 200
    header, _ = direct.call(x=np.zeros(50_000), segment=Segment.create("last", 1_000_000))
    assert header["segment"][0] in keys


def test_what_a_component_keeps_does_not_change(direct):
    segment = Segment.create("k", 1_000_000)
    header, _ = direct.call("keep", x=np.full(100_000, 5.0), segment=segment)
    assert header["held"] is False
    direct.call(x=np.zeros(100_000), segment=segment)
    _, tree = direct.call("kept")
    np.testing.assert_array_equal(tree["y"], np.full(100_000, 5.0))


def test_errors_arrive(direct):
    header, body = direct.call("raise")
    assert header["status"] == 500
    assert b"mesh is empty" in body
    assert direct.call(path="/nowhere")[0]["status"] == 404
    assert direct.call(run_id="..")[0]["status"] == 422
    assert direct.call(accept=3)[0]["status"] == 422
    assert direct.call(something_else=1)[0]["status"] == 200
    assert direct.call()[0]["status"] == 200


def test_memory_that_could_shrink_is_refused(direct):
    descriptor = os.memfd_create("loose")
    os.ftruncate(descriptor, 100_000)
    direct.number += 1
    header = {"path": "/apply", "content_type": FRAMES, "number": direct.number}
    send_message(direct.connection, {**header, "segment": ["loose", 100_000]}, (), [descriptor])
    os.close(descriptor)
    assert direct.receive()[0]["status"] == 422
    assert direct.call()[0]["status"] == 200


@pytest.mark.parametrize("header", [{"release": 3}, {"segment": ["a", -1]}, {"number": "x"}])
def test_messages_of_another_form_end_the_connection(any_served, header):
    with direct_caller(any_served) as caller:
        send_message(caller.connection, {"path": "/apply", "number": 99, **header}, [b"{}"])
        assert receive_message(caller.connection) is None
    assert any_served.apply().status == 200


def test_callers_over_http_get_their_turn(single):
    """A lent worker comes back for a call over HTTP, however busy its client keeps it."""
    stop = threading.Event()
    with direct_caller(single) as caller:

        def keep_calling():
            while not stop.is_set():
                assert caller.call()[0]["status"] == 200

        thread = threading.Thread(target=keep_calling)
        thread.start()
        try:
            assert [single.apply().status for _ in range(20)] == [200] * 20
        finally:
            stop.set()
            thread.join()


def test_many_clients_of_one_worker(single):
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(direct_caller(single)) for _ in range(8)]
        for _ in range(5):
            for caller in callers:
                caller.send(x=[caller.number])
            for caller in callers:
                header, tree = caller.receive()
                while header["status"] == 503:  # one waits at most; the rest may be turned away
                    caller.send(x=[caller.number])
                    header, tree = caller.receive()
                assert header["status"] == 200
                assert tree["y"].shape == (1,)


def test_a_long_call_does_not_hold_up_others(served):
    """Two workers: while one computes for a client, its other clients are answered by the other one."""
    with direct_caller(served) as slow, contextlib.ExitStack() as stack:
        others = [stack.enter_context(direct_caller(served)) for _ in range(3)]
        slow.send("sleep", 3.0)
        start = time.monotonic()
        for other in others:
            assert other.call()[0]["status"] == 200
        assert time.monotonic() - start < 2.5
        assert slow.receive()[0]["status"] == 200


def test_a_full_queue_turns_clients_away(single, wait_until):
    with direct_caller(single) as slow, contextlib.ExitStack() as stack:
        others = [stack.enter_context(direct_caller(single)) for _ in range(3)]
        slow.send("sleep", 1.0)
        wait_until(lambda: single.is_running)
        for other in others:
            other.send()
        statuses = sorted(other.receive()[0]["status"] for other in others)
        assert statuses == [200, 503, 503]
        assert slow.receive()[0]["status"] == 200


@pytest.mark.parametrize(("action", "fact"), [("segfault", b"SIGSEGV"), ("exit", b'"exit_code":3')])
def test_a_crash_costs_one_answer(single, action, fact):
    with direct_caller(single) as caller, direct_caller(single) as other:
        header, body = caller.call(action)
        assert header["status"] == 502
        assert header["held"] is True
        assert b"worker_crashed" in body
        assert fact in body
        assert caller.call()[0]["status"] == 200
        assert other.call()[0]["status"] == 200


def test_a_killed_idle_worker_costs_nothing(single, wait_until):
    with direct_caller(single) as caller:
        (worker,) = psutil.Process(single.process.pid).children()
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: _is_gone(worker))
        assert caller.call()[0]["status"] == 200


def _is_gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("action", ["sleep", "hold_the_gil", "stubborn"])
def test_a_call_that_takes_too_long_is_stopped(single, action):
    with direct_caller(single) as caller:
        header, body = caller.call(action, 60.0)
        assert header["status"] == 504
        assert b"call_timeout" in body
        assert caller.call()[0]["status"] == 200


@pytest.mark.parametrize(("action", "stays"), [("sleep", True), ("stubborn", False)])
def test_a_client_that_leaves_cancels_its_work(start_server, action, stays, wait_until):
    served = start_server(workers=1)
    server = psutil.Process(served.process.pid)
    (before,) = server.children()
    with direct_caller(served) as caller:
        caller.send(action, 60.0)
        wait_until(lambda: served.is_running)
    wait_until(lambda: not served.is_running)
    wait_until(lambda: len(server.children()) == 1)
    assert served.apply().status == 200
    assert (server.children() == [before]) is stays
    served.stop()


def is_closed(served):
    try:
        served.get("/health")
    except OSError:
        return True
    return False


def test_stop_lets_calls_finish_and_turns_new_ones_away(start_server, wait_until):
    served = start_server(workers=1, grace_s=20)
    with direct_caller(served) as slow, direct_caller(served) as other:
        slow.send("sleep", 3.0)
        wait_until(lambda: served.is_running)
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_closed(served))
        assert other.call()[0]["status"] == 503
        assert slow.receive()[0]["status"] == 200
    served.process.wait(20)


def test_a_thread_that_takes_too_long(start_server, wait_until):
    served = start_server(workers=0, timeout_s=0.3, max_queue=2)
    with direct_caller(served) as caller:
        header, body = caller.call("sleep", 1.5)
        assert header["status"] == 504
        assert b"still runs" in body
        wait_until(lambda: caller.call()[0]["status"] == 200)
        _, tree = caller.call(x=[4.0])
        np.testing.assert_array_equal(tree["y"], [8.0])
    served.stop()


def test_nothing_is_left_behind(any_served):
    process = psutil.Process(any_served.process.pid)
    everyone = [process, *process.children()]

    def descriptors():
        return sum(each.num_fds() for each in everyone)

    def round_of_calls():
        for i in range(5):
            with direct_caller(any_served) as caller:
                caller.call(x=np.zeros(50_000), segment=Segment.create(f"x{i}", 1_000_000))
        any_served.apply()

    round_of_calls()
    before = descriptors()
    for _ in range(3):
        round_of_calls()
    assert descriptors() <= before + 4


class FakeWorker:
    """As far as a lease sees one."""

    can_be_killed = True
    prefix = "w0."

    def __init__(self) -> None:
        self.slot = CallSlot()
        self.lease = None

    def send_client(self, client, holds):
        return True

    def release_segment(self, key):
        raise AssertionError("nothing was lent")


class FakeClient:
    number = 7
    has_left = False

    def __init__(self, is_unheard: bool) -> None:
        self.is_unheard = is_unheard
        self.failures = []
        self.is_back = False

    def lend(self, prefix):
        return []

    def take_back(self, held, release):
        self.is_back = True

    def fail(self, number, error):
        self.failures.append(number)


def test_a_worker_whose_last_client_has_left_sleeps_until_the_server_speaks():
    hears, speaks = os.pipe()
    slot = CallSlot()
    direct = DirectClients(Desk("t"), None, slot, hears, max_body_bytes=1, tell=None)
    waiting = threading.Thread(target=direct.wait, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    os.write(speaks, b"come back")
    waiting.join(30)
    assert not waiting.is_alive()
    slot.close()
    os.close(hears)
    os.close(speaks)


@pytest.mark.parametrize(
    ("begun", "is_unheard", "told"),
    [
        ([], False, []),
        ([(7, 3)], False, [3]),  # computing call 3, or just done with it
        ([(7, 3)], True, [3]),
        ([(7, 0)], False, [None]),  # it had read a call, whose number nobody knows
        ([(7, 0)], True, []),  # the call is still there
        ([(9, 3)], False, []),  # a client that has left
    ],
)
def test_who_is_told_when_a_worker_dies(begun, is_unheard, told):
    async def lose():
        worker, client = FakeWorker(), FakeClient(is_unheard)
        lease = Lease(
            worker,
            timeout_s=None,
            counters=Counters(),
            traffic=Traffic(),
            on_end=lambda lease: None,
        )
        lease.add(client)
        for call in begun:
            worker.slot.begin(*call)
        lease.lost(CallError("gone", status=502))
        worker.slot.close()
        return client

    client = asyncio.run(lose())
    assert client.failures == told
    assert client.is_back

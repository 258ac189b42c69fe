"""Shared memory with clients of the same host, spoken by hand."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import psutil
import pytest

from chainrule.runtime._codec import decode_frames, encode_frames
from chainrule.runtime._samehost import (
    Segment,
    SegmentCache,
    connect,
    receive_message,
    send_message,
)

FRAMES = "application/vnd.chainrule.frames"


class Caller:
    def __init__(self, served, **hello) -> None:
        self.offer = served.get("/same-host").tree
        self.connection = connect(self.offer["address"], timeout_s=30)
        self.received = SegmentCache()
        send_message(self.connection, {"op": "hello", "secret": self.offer["secret"], **hello})
        self.greeting = receive_message(self.connection)

    def send(self, tree, segment=None, path="/apply", **header):
        frames = encode_frames(tree)
        header = {"path": path, "content_type": FRAMES, "accept": FRAMES, **header}
        if segment is None:
            send_message(self.connection, header, frames.pieces)
            return
        frames.write_into(segment.array(frames.nbytes))
        header["segment"] = [segment.key, frames.nbytes]
        send_message(self.connection, header, (), [segment.descriptor])

    def receive(self):
        message = receive_message(self.connection)
        if message is None:
            return None, None
        if "segment" not in message.header:
            body = message.body
        else:
            key, nbytes = message.header["segment"]
            body = self.received.get(key, message.descriptors[0]).array(nbytes)
        is_frames = message.header["content_type"] == FRAMES
        return message.header, decode_frames(body) if is_frames else body

    def call(self, *args, **kwargs):
        self.send(*args, **kwargs)
        return self.receive()


@pytest.fixture
def caller(any_served):
    caller = Caller(any_served)
    with contextlib.closing(caller.connection):
        yield caller


def inputs(x, action="double", seconds=0.0):
    return {"inputs": {"x": x, "action": action, "seconds": seconds}}


def test_small_bodies_travel_inline(caller):
    header, tree = caller.call(inputs(np.arange(3.0)))
    assert header["status"] == 200
    assert "segment" not in header
    np.testing.assert_array_equal(tree["y"], [0, 2, 4])


def test_large_bodies_lie_in_segments_that_are_used_again(caller):
    segment = Segment.create("mine", 2_000_000)
    keys, last = set(), []
    for i in range(5):
        x = np.full(200_000, float(i))
        header, tree = caller.call(inputs(x), segment, release=last)
        assert (header["status"], header["held"]) == (200, False)
        np.testing.assert_array_equal(tree["y"], 2 * x)
        del tree
        last = [header["segment"][0]]
        keys.add(last[0])
    assert len(keys) <= 2


def test_what_a_component_keeps_does_not_change(caller):
    segment = Segment.create("k", 1_000_000)
    header, _ = caller.call(inputs(np.full(100_000, 5.0), "keep"), segment)
    assert header["held"] is False
    caller.call(inputs(np.zeros(100_000)), segment)
    _, tree = caller.call(inputs(np.zeros(1), "kept"))
    np.testing.assert_array_equal(tree["y"], np.full(100_000, 5.0))


def test_errors_arrive(caller):
    header, body = caller.call(inputs(np.zeros(1), "raise"))
    assert header["status"] == 500
    assert b"mesh is empty" in bytes(body)
    assert caller.call(inputs(np.zeros(1)), path="/nowhere")[0]["status"] == 404
    assert caller.call(inputs(np.zeros(1)), run_id="..")[0]["status"] == 422
    assert caller.call(inputs(np.zeros(1)))[0]["status"] == 200


def test_memory_that_could_shrink_is_refused(caller):
    descriptor = os.memfd_create("loose")
    os.ftruncate(descriptor, 100_000)
    header = {"path": "/apply", "content_type": FRAMES, "segment": ["loose", 100_000]}
    send_message(caller.connection, header, (), [descriptor])
    os.close(descriptor)
    assert caller.receive()[0]["status"] == 422
    send_message(caller.connection, {**header, "segment": ["never sent", 10]})
    assert caller.receive()[0]["status"] == 422
    segment = Segment.create("s", 70_000)
    send_message(caller.connection, {**header, "segment": ["s", 10**9]}, (), [segment.descriptor])
    assert caller.receive()[0]["status"] == 422
    assert caller.call(inputs(np.zeros(1)))[0]["status"] == 200


@pytest.mark.parametrize(
    "header",
    [
        {"release": 3},
        {"release": [3]},
        {"segment": 3},
        {"segment": ["a"]},
        {"segment": ["a", -1]},
        {"segment": ["a", "b"]},
        {"segment": [3, 3]},
    ],
)
def test_messages_of_another_form_end_the_connection(any_served, header):
    caller = Caller(any_served)
    with contextlib.closing(caller.connection):
        send_message(caller.connection, {"path": "/apply", **header}, [b"{}"])
        assert receive_message(caller.connection) is None
    assert any_served.apply().status == 200


@pytest.mark.parametrize("header", [{"accept": 3}, {"content_type": None}, {"run_id": ["x"]}])
def test_headers_that_are_not_text(caller, header):
    assert caller.call(inputs(np.zeros(1)), **header)[0]["status"] in (415, 422)
    assert caller.call(inputs(np.zeros(1)))[0]["status"] == 200


def test_a_wrong_secret_is_not_accepted(any_served):
    caller = Caller(any_served, secret="0" * 64)
    with contextlib.closing(caller.connection):
        assert caller.greeting.header["status"] == 401
        assert receive_message(caller.connection) is None


def test_a_crash_is_reported_and_overcome(served):
    caller = Caller(served)
    with contextlib.closing(caller.connection):
        segment = Segment.create("a", 1_000_000)
        header, _ = caller.call(inputs(np.zeros(50_000), "exit"), segment)
        assert (header["status"], header["held"]) == (502, True)
        header, _ = caller.call(inputs(np.zeros(50_000)), Segment.create("b", 1_000_000))
        assert header["status"] == 200


def test_closing_the_connection_cancels_the_call(served):
    caller = Caller(served)
    caller.send(inputs(np.zeros(1), "sleep", 60.0))
    caller.connection.close()
    for _ in range(3):
        assert served.apply().status == 200


def test_no_memory_is_left_behind(any_served):
    process = psutil.Process(any_served.process.pid)
    everyone = [process, *process.children()]

    def descriptors():
        return sum(each.num_fds() for each in everyone)

    def round_of_calls():
        for _ in range(5):
            caller = Caller(any_served)
            with contextlib.closing(caller.connection):
                caller.call(inputs(np.zeros(50_000)), Segment.create("x", 1_000_000))
        any_served.apply()

    round_of_calls()
    before = descriptors()
    for _ in range(3):
        round_of_calls()
    assert descriptors() <= before + 4

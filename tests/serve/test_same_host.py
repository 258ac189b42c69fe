"""Bodies in shared memory, spoken by hand: what a client may send beside its requests, and what not."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainrule._codec import decode_frames, encode_frames
from chainrule._same_host import Segment, connect, receive_message, send_message

FRAMES = "application/vnd.chainrule.frames"
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Caller:
    """One HTTP connection and one channel."""

    def __init__(self, served) -> None:
        self.http = served.connect()
        offer = served.get("/same-host").tree
        self.channel = connect(offer["address"], timeout_s=30)
        send_message(self.channel, {"secret": offer["secret"]})
        self.name = receive_message(self.channel).header["channel"]
        self.number = 0

    def close(self):
        self.http.close()
        self.channel.close()

    def announce(self, body=None, room=None):
        self.number += 1
        segments = [segment for segment in (body, room) if segment is not None]
        header = {"number": self.number, "body": body is not None, "room": room is not None}
        send_message(self.channel, header, (), [segment.descriptor for segment in segments])

    def request(self, nbytes, body=b"", path="/apply", memory=None, **headers):
        """The answer to a request for what was announced last."""
        memory = memory or f"{self.name} {self.number} {nbytes}"
        headers = {"Content-Type": FRAMES, "Accept": FRAMES, "Chainrule-Memory": memory, **headers}
        self.http.request("POST", path, body, headers)
        answer = self.http.getresponse()
        return answer, answer.read()

    def call(self, tree, body=None, room=None, **options):
        frames = encode_frames(tree)
        if body is not None:
            body.write(frames.pieces)
        self.announce(body, room)
        inline = bytes(frames) if body is None else b""
        return self.request(0 if body is None else frames.nbytes, inline, **options)


@pytest.fixture
def caller(any_served):
    with contextlib.closing(Caller(any_served)) as caller:
        yield caller


def inputs(x, action="double", seconds=0.0):
    return {"inputs": {"x": x, "action": action, "seconds": seconds}}


def code_of(content):
    return json.loads(content)["code"]


def test_small_answers_are_in_the_response(caller):
    answer, content = caller.call(inputs(np.arange(3.0)))
    assert (answer.status, answer.headers["chainrule-memory"]) == (200, "inline")
    np.testing.assert_array_equal(decode_frames(content)["y"], [0, 2, 4])


def test_large_bodies_lie_in_segments_that_are_used_again(caller):
    body, room = Segment.create(2_000_000), None
    for number in range(5):
        x = np.full(200_000, float(number))
        answer, content = caller.call(inputs(x), body, room)
        form, nbytes = answer.headers["chainrule-memory"].split()
        assert (answer.status, content) == (200, b"")
        assert form == ("segment" if room is None else "room")
        if room is None:
            room = Segment(*receive_message(caller.channel).descriptors)
        np.testing.assert_array_equal(decode_frames(room.copy(int(nbytes)))["y"], 2 * x)


def test_an_answer_that_does_not_fit_comes_in_a_new_segment(caller):
    room = Segment.create(70_000)
    answer, _ = caller.call(inputs(np.ones(100_000)), Segment.create(1_000_000), room)
    form, nbytes = answer.headers["chainrule-memory"].split()
    assert form == "segment"
    new = Segment(*receive_message(caller.channel).descriptors)
    np.testing.assert_array_equal(decode_frames(new.copy(int(nbytes)))["y"], np.full(100_000, 2.0))


def test_what_a_component_keeps_does_not_change(caller):
    segment = Segment.create(1_000_000)
    caller.call(inputs(np.full(100_000, 5.0), "keep"), segment)
    receive_message(caller.channel).close()
    segment.write([b"\xff" * 800_000])
    answer, _ = caller.call(inputs(np.zeros(1), "kept"), None, segment)
    _, nbytes = answer.headers["chainrule-memory"].split()
    kept = decode_frames(segment.copy(int(nbytes)))["y"]
    np.testing.assert_array_equal(kept, np.full(100_000, 5.0))


def test_errors_arrive_and_say_that_the_memory_is_free(caller):
    segment = Segment.create(1_000_000)
    answer, content = caller.call(inputs(np.zeros(50_000), "raise"), segment)
    assert (answer.status, answer.headers["chainrule-memory"]) == (500, "inline")
    assert b"mesh is empty" in content


def test_memory_that_was_sent_elsewhere_is_not_found(any_served, caller):
    with contextlib.closing(Caller(any_served)) as other:
        caller.announce(Segment.create(100_000))
        answer, content = other.request(100_000)  # nothing was announced on this channel
        assert (answer.status, code_of(content)) == (421, "unknown_memory")
    for memory in ("", "x", "0" * 32 + " 1 1", f"{caller.name} 77 1", f"{caller.name} -1 1", "é"):
        answer, content = caller.request(1, memory=memory or " ")
        assert (answer.status, code_of(content)) == (421, "unknown_memory")


def test_a_server_that_shares_no_memory_says_so(start_server):
    served = start_server(workers=0, same_host=False)
    answer = served.apply(headers={"Chainrule-Memory": "0" * 32 + " 1 1"})
    assert (answer.status, answer.problem["code"]) == (421, "unknown_memory")
    assert served.get("/same-host").status == 404
    served.stop()


@pytest.mark.parametrize("nbytes", [0, 10**9, 10**17])
def test_a_size_that_does_not_fit_the_segment(caller, nbytes):
    caller.announce(Segment.create(100_000))
    answer, content = caller.request(nbytes)
    assert (answer.status, code_of(content)) == (422, "bad_segment")


def test_a_body_in_the_request_and_in_memory(caller):
    caller.announce(Segment.create(100_000))
    answer, content = caller.request(100_000, b"{}")
    assert (answer.status, code_of(content)) == (422, "bad_segment")


def test_a_body_beyond_the_limit(served):
    with contextlib.closing(Caller(served)) as caller:
        caller.announce(Segment.create(50_000_000))
        answer, content = caller.request(50_000_000)
        assert (answer.status, code_of(content)) == (413, "body_too_large")


def test_a_job_has_its_body_in_the_request(caller):
    caller.announce(Segment.create(100_000))
    answer, content = caller.request(100_000, path="/apply?wait=false")
    assert (answer.status, code_of(content)) == (422, "bad_segment")


class Loose:
    """A descriptor in place of a segment."""

    def __init__(self, descriptor):
        self.descriptor = descriptor


@contextlib.contextmanager
def odd_descriptors():
    """Files that are no sealed memory, and memory that may not be written to."""
    shrinking = os.memfd_create("shrinking", os.MFD_ALLOW_SEALING)
    os.ftruncate(shrinking, 100_000)
    sealed = Segment.create(100_000)
    read_only = os.open(f"/proc/self/fd/{sealed.descriptor}", os.O_RDONLY)
    frozen = os.memfd_create("frozen", os.MFD_ALLOW_SEALING)
    os.ftruncate(frozen, 100_000)
    fcntl.fcntl(frozen, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_WRITE)
    opened = [shrinking, read_only, frozen, os.open("/etc/passwd", os.O_RDONLY), *os.pipe()]
    try:
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_other_files_are_refused(caller, any_served):
    with odd_descriptors() as opened:
        for descriptor in opened:
            caller.announce(Loose(descriptor))
            answer, content = caller.request(100)
            assert (answer.status, code_of(content)) == (422, "bad_segment")
            # As room for an answer it may be refused, or not be used.
            caller.announce(None, Loose(descriptor))
            answer, _ = caller.request(0, bytes(encode_frames(inputs(np.zeros(10_000)))))
            assert answer.status in (200, 422, 507)
            if answer.headers["chainrule-memory"] not in (None, "inline"):
                receive_message(caller.channel).close()
    assert any_served.apply().status == 200


def test_a_segment_cannot_shrink_under_the_server(caller):
    segment = Segment.create(1_000_000)
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 0)
    assert caller.call(inputs(np.zeros(50_000)), segment)[0].status == 200


def test_only_the_body_of_a_huge_segment_is_mapped(caller, any_served):
    """Eight gigabytes that are not there, and a body of some bytes at their start."""
    process = psutil.Process(any_served.process.pid)
    # Children that author code forked in another test, and did not wait for, have no memory any more.
    children = [one for one in process.children() if one.status() != psutil.STATUS_ZOMBIE]
    everyone = [process, *children]

    def largest() -> int:
        maps = [one for each in everyone for one in each.memory_maps(grouped=False)]
        return max((one.size for one in maps if "memfd:chainrule" in one.path), default=0)

    before = largest()  # of bodies of other tests
    segment = Segment.create(8 << 30)
    answer, _ = caller.call(inputs(np.ones(10)), segment)
    assert answer.status == 200
    assert largest() <= max(before, 4 << 20)


def test_a_crash_is_reported_and_overcome(served):
    with contextlib.closing(Caller(served)) as caller:
        answer, _ = caller.call(inputs(np.zeros(50_000), "exit"), Segment.create(1_000_000))
        assert answer.status == 502
        assert answer.headers["chainrule-memory"] is None  # the segments are not free
        answer, _ = caller.call(inputs(np.zeros(50_000)), Segment.create(1_000_000))
        assert answer.status == 200


def test_closing_the_connection_cancels_the_call(served, wait_until):
    with contextlib.closing(Caller(served)) as caller:
        caller.announce(room=Segment.create(100_000))
        body = bytes(encode_frames(inputs(np.zeros(1), "sleep", 60.0)))
        memory = f"{caller.name} {caller.number} 0"
        headers = {"Content-Type": FRAMES, "Chainrule-Memory": memory}
        caller.http.request("POST", "/apply", body, headers)
        wait_until(lambda: served.is_running)
    wait_until(lambda: not served.is_running)


def descriptors_of(served):
    process = psutil.Process(served.process.pid)
    return sum(each.num_fds() for each in [process, *process.children()])


def test_no_memory_is_left_behind(any_served, wait_until):
    def round_of_calls():
        for _ in range(5):
            with contextlib.closing(Caller(any_served)) as caller:
                caller.call(inputs(np.zeros(50_000)), Segment.create(1_000_000))
                caller.announce(Segment.create(100_000), Segment.create(100_000))  # and no request

    round_of_calls()
    before = descriptors_of(any_served)
    for _ in range(3):
        round_of_calls()
    # A worker lets go of memory that does not come again some seconds later.
    wait_until(lambda: descriptors_of(any_served) <= before)


@pytest.mark.parametrize("secret", ["0" * 64, "", "é" * 64, "\0", None, 3, ["x"], {}, 1.5, True])
def test_wrong_secrets_are_not_accepted(any_served, secret):
    offer = any_served.get("/same-host").tree
    with contextlib.closing(connect(offer["address"], timeout_s=30)) as channel:
        send_message(channel, {"secret": secret})
        assert receive_message(channel) is None


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KNOWN_KEYS = ["number", "body", "room", "secret", "path", "segment", "call"]
HEADERS = st.dictionaries(
    st.sampled_from(KNOWN_KEYS) | st.text(max_size=5), JSON_VALUES, max_size=5
)
PACKETS = st.binary(max_size=200) | st.builds(
    lambda header, body: (
        len(text := json.dumps(header).encode()).to_bytes(4, "little") + text + body
    ),
    HEADERS | JSON_VALUES,
    st.binary(max_size=20),
)


@pytest.fixture(scope="module", params=[0, 1], ids=["thread", "process"])
def logged(request, start_server, tmp_path_factory):
    """A server whose log is kept."""
    log = tmp_path_factory.mktemp("log") / "log"
    with log.open("wb") as file:
        served = start_server(workers=request.param, stderr=file)
    served.log = log
    yield served
    served.stop()


def test_odd_messages_cost_a_channel_and_nothing_else(logged, wait_until):
    """No message leaks a descriptor, ends a worker, or puts an exception into the log."""
    before = descriptors_of(logged)
    workers = [worker["pid"] for worker in logged.get("/status").tree["workers"]]
    offer = logged.get("/same-host").tree

    @settings(
        max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        packets=st.lists(st.tuples(PACKETS, st.integers(0, 6)), min_size=1, max_size=4),
        is_known=st.booleans(),
    )
    def send(packets, is_known):
        with (
            contextlib.closing(connect(offer["address"], timeout_s=30)) as channel,
            odd_descriptors() as opened,
        ):
            if is_known:
                send_message(channel, {"secret": offer["secret"]})
                name = receive_message(channel).header["channel"]
            for packet, count in packets:
                try:
                    socket.send_fds(channel, [packet], opened[:count])
                except OSError:
                    break
            if is_known:
                memory = f"{name} 1 100"
                headers = {"Content-Type": FRAMES, "Chainrule-Memory": memory}
                answer = logged.request("POST", "/apply", b"", headers)
                assert answer.status in (421, 422)

    send()
    with contextlib.closing(Caller(logged)) as caller:
        answer, _ = caller.call(inputs(np.zeros(50_000)), Segment.create(1_000_000))
        assert answer.status == 200
    assert [worker["pid"] for worker in logged.get("/status").tree["workers"]] == workers
    wait_until(lambda: descriptors_of(logged) <= before)
    assert "Traceback" not in logged.log.read_text()


def test_announcements_of_every_kind(logged, wait_until):
    """Well-formed messages with memory that is not what the request says."""
    before = descriptors_of(logged)

    @settings(
        max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        which=st.lists(st.integers(0, 6), max_size=2),
        nbytes=st.integers(0, 200_000) | st.just(10**18 - 1),
        content=st.binary(max_size=64),
    )
    def send(which, nbytes, content):
        with contextlib.closing(Caller(logged)) as caller, odd_descriptors() as opened:
            segment = Segment.create(100_000)
            segment.write([content])
            choices = [segment, *map(Loose, opened)]
            chosen = [choices[index] for index in which] + [None, None]
            caller.announce(*chosen[:2])
            answer, _ = caller.request(nbytes)
            assert 400 <= answer.status < 500

    send()
    wait_until(lambda: descriptors_of(logged) <= before)
    assert logged.apply().status == 200
    assert "Traceback" not in logged.log.read_text()

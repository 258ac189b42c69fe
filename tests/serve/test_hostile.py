"""Callers that send too much, too slowly, or what they should not: the right 4xx, little memory, no file."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import resource
import socket
from typing import NamedTuple

import lz4.frame
import numpy as np
import psutil
import pybase64
import pytest
import zstandard

from chainrule._codec import encode_body, encode_frames
from chainrule.serve._connections import CallerTransport, enough_descriptors, longest_waiting
from chainrule.serve._endpoint import SlowCallerError, read_body

JSON = {"Content-Type": "application/json"}
BODY = b'{"inputs": {"x": [1.0, 2.0]}}'


def encoded(**changes):
    array = {
        "shape": [2],
        "dtype": "float64",
        "data": {"encoding": "base64", "buffer": pybase64.b64encode_as_string(np.ones(2))},
    }
    return {**array, **changes}


def converse(served, data: bytes, *, close=False) -> bytes:
    """Send raw bytes and read until the server closes."""
    host, port = served.netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(data)
        if close:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def peak_memory(served) -> int:
    return psutil.Process(served.process.pid).memory_info().rss


def test_a_huge_body_is_refused_before_it_is_read(served):
    head = b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = converse(served, head + b"Content-Length: 1000000000\r\n\r\n[")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in answer
    answer = converse(served, head + b"Content-Length: 9999999999999999999\r\n\r\n[")
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_huge_body_without_a_length_is_refused_on_the_way(served):
    def endless():
        for _ in range(60):
            yield b" " * 1_000_000

    before = peak_memory(served)
    try:
        status = served.request("POST", "/apply", endless(), JSON).status
    except ConnectionError:
        status = 413  # the server answered and closed while we were still sending
    assert status == 413
    assert peak_memory(served) - before < 150_000_000


@pytest.mark.parametrize(
    ("array", "status", "code"),
    [
        (encoded(shape=[2**60]), 413, "array_too_large"),
        (encoded(shape=[2**40, 2**40]), 413, "array_too_large"),
        (encoded(shape=[0, 2**62]), 422, "array_shape_too_large"),
        (
            encoded(shape=[0, 2**62], data={"encoding": "json", "buffer": []}),
            422,
            "array_shape_too_large",
        ),
        (
            encoded(
                data={
                    "encoding": "base64",
                    "compression": "lz4",
                    "buffer": pybase64.b64encode_as_string(lz4.frame.compress(bytes(10**8))),
                }
            ),
            422,
            "array_decode_error",
        ),
        (encoded(dtype="Float64"), 422, "array_invalid_dtype"),
        (encoded(shape=["2"]), 422, "array_decode_error"),
        (encoded(shape=[2.0]), 422, "array_decode_error"),
        (encoded(shape=[1, 2]), 422, "array_dimensionality_mismatch"),
        (encoded(data={"encoding": "raw", "buffer": ""}), 422, "array_decode_error"),
        ([1, [2]], 422, "array_non_numeric"),
    ],
)
def test_bad_arrays(served, array, status, code):
    answer = served.request("POST", "/apply", json.dumps({"inputs": {"x": array}}), JSON)
    assert (answer.status, answer.problem["code"]) == (status, code)
    problem = answer.problem["detail"][0]
    assert problem["type"] == code
    assert problem["loc"][:3] == ["body", "inputs", "x"]


@pytest.mark.parametrize(
    "reference",
    ["/etc/passwd", "../../etc/passwd", "file:///etc/passwd", "/proc/self/environ",
     "http://127.0.0.1:1/x", "s3://bucket/x"],
)  # fmt: skip
def test_files_that_were_not_granted(served, reference):
    array = encoded(shape=[8], dtype="uint8", data={"encoding": "binref", "buffer": reference})
    answer = served.request("POST", "/apply", json.dumps({"inputs": {"x": array}}), JSON)
    assert (answer.status, answer.problem["code"]) == (422, "path_not_granted")
    assert b"root" not in answer.body


def test_granted_files_are_read_and_written(served, folder):
    np.arange(3.0).tofile(folder / "in" / "x.bin")
    array = encoded(shape=[3], data={"encoding": "binref", "buffer": "x.bin:0"})
    answer = served.request(
        "POST",
        "/apply?run_id=mine",
        json.dumps({"inputs": {"x": array}}),
        {**JSON, "Accept": "application/json+binref"},
    )
    assert answer.status == 200
    name, _, offset = json.loads(answer.body)["y"]["data"]["buffer"].partition(":")
    assert name.startswith("run_mine/")
    assert offset == "0"
    np.testing.assert_array_equal(np.fromfile(folder / "out" / name), [0, 2, 4])
    for file in (folder / "out").rglob("*"):
        assert file.is_dir() or file.suffix == ".bin"


def test_the_same_run_id_twice_is_kept_apart(served, folder):
    names = set()
    for _ in range(2):
        answer = served.request(
            "POST", "/apply?run_id=twice", BODY, {**JSON, "Accept": "application/json+binref"}
        )
        names.add(json.loads(answer.body)["y"]["data"]["buffer"].split("/")[0])
    assert len(names) == 2
    assert all((folder / "out" / name).is_dir() for name in names)


@pytest.mark.parametrize("run_id", ["..", ".", "%2e%2e%2fx", "a/b", "a%00b", "x" * 129, ""])
def test_run_ids(served, run_id, folder):
    answer = served.request("POST", f"/apply?run_id={run_id}", BODY, JSON)
    assert (answer.status, answer.problem["code"]) == (422, "bad_run_id")


def test_an_output_folder_that_cannot_be_written(start_server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    served = start_server(config={"output_path": str(tmp_path / "file" / "out")})
    assert served.apply().status == 200
    answer = served.apply(accept="application/json+binref")
    assert answer.status == 507
    assert answer.problem["code"].startswith("storage_")
    served.stop()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, "json_invalid"),
        (b"{", 422, "json_invalid"),
        (b"[]", 422, "invalid_input"),
        (b"3", 422, "invalid_input"),
        (b"{}", 422, None),
        (b'{"inputs": {"x": [1.0], "x": [2.0]}}', 400, "duplicate_key"),
        (b'{"inputs": {"x": [1e999999]}}', 200, None),
        (
            b'{"inputs": {"x": [12345678901234567890123456789012345]}}',
            422,
            "array_value_out_of_range",
        ),
        (b'{"inputs": {"x": [null]}}', 422, None),
        (b'{"inputs": {"x": ["1"]}}', 422, "array_non_numeric"),
        (b"[" * 100_000, 413, "too_deep"),
        (b'{"inputs": {"x": [1.0], "seconds": "soon"}}', 422, "invalid_input"),
        (b'{"inputs": {"x": [1.0], "action": "\xff"}}', 422, "json_invalid"),
    ],
)
def test_bad_bodies(served, body, status, code):
    answer = served.request("POST", "/apply", body, JSON)
    assert answer.status == status, answer.body
    if status != 200:
        assert isinstance(answer.problem["detail"], list)
        assert code is None or answer.problem["code"] == code


def test_damaged_frames_are_never_our_fault(served):
    chance = random.Random(0)
    sound = bytes(encode_frames({"inputs": {"x": np.arange(100.0), "seconds": 0.0}}))
    statuses = set()
    for _ in range(200):
        body = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            where = chance.randrange(200)
            body[where : where + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 3))
        headers = {"Content-Type": "application/vnd.chainrule.frames"}
        statuses.add(served.request("POST", "/apply", bytes(body), headers).status)
    assert 422 in statuses
    assert max(statuses) < 500


def test_error_bodies_are_small_and_echo_nothing(served):
    many = {"inputs": {"x": [1.0], **{f"field_{i}": "secret" for i in range(10_000)}}}
    big = {"inputs": {"x": encoded(data={"encoding": "base64", "buffer": "!" * 10_000_000})}}
    for tree in (many, big, {"inputs": {"x": [1.0], "k" * 100_000: 1}}):
        answer = served.request("POST", "/apply", json.dumps(tree), JSON)
        assert answer.status == 422
        assert len(answer.body) <= 16_384
        assert b"secret" not in answer.body
        assert b"!!!" not in answer.body
    assert served.request("POST", "/apply", json.dumps(many), JSON).problem["count"] == 10_000


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, BODY, 415),
        ({"Content-Type": "text/plain"}, BODY, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, BODY, 200),
        ({"Content-Type": "application/json+base64"}, BODY, 200),
        ({"Content-Type": "application/vnd.chainrule.frames"}, BODY, 422),
        ({**JSON, "Content-Encoding": "gzip"}, gzip.compress(BODY, mtime=0), 200),
        ({**JSON, "Content-Encoding": "zstd"}, zstandard.compress(BODY), 200),
        ({**JSON, "Content-Encoding": "gzip"}, BODY, 400),
        ({**JSON, "Content-Encoding": "gzip"}, gzip.compress(BODY, mtime=0) * 2, 400),
        ({**JSON, "Content-Encoding": "zstd"}, BODY, 400),
        ({**JSON, "Content-Encoding": "br"}, BODY, 415),
        ({**JSON, "Content-Encoding": "gzip"}, gzip.compress(bytes(10**8), mtime=0), 413),
        ({**JSON, "Content-Encoding": "zstd"}, zstandard.compress(bytes(10**8)), 413),
        ({**JSON, "Accept": "image/png"}, BODY, 406),
        ({**JSON, "Accept": "image/png," * 5000}, BODY, 422),
        ({**JSON, "Accept": "x" * 60_000}, b" " * 30_000 + BODY, 422),
        ({"Content-Type": "x" * 2000}, BODY, 422),
        ({**JSON, "Accept": "image/png, */*;q=0.1"}, BODY, 200),
    ],
)
def test_headers(served, headers, body, status):
    with_type = headers or {"Content-Type": ""}
    answer = served.request("POST", "/apply", body, with_type)
    assert answer.status == status, answer.body
    if status == 406:
        assert "json+base64" in answer.problem["detail"]["available_formats"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_methods(served, method):
    answer = served.request(method, "/apply")
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        assert answer.problem["message"] == f"/apply takes POST, not {method}."


def test_unknown_places(served):
    for path in ("/nowhere", "/c/x/apply", "/../etc/passwd", "/redoc"):
        answer = served.get(path)
        assert (answer.status, answer.problem["detail"]) == (404, "Not Found")
        what = "This server has no component" if path.startswith("/c/") else "There is nothing"
        assert answer.problem["message"].startswith(f"{what} at {path};")


class ClockedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only where a test lets it."""

    now = 0.0

    def time(self):
        return self.now


@pytest.mark.parametrize(
    ("pause_s", "message"), [(0.01, "too slowly: 5 bytes"), (0.06, "next part .* 0.05 s")]
)
def test_a_body_that_comes_byte_by_byte_is_not_waited_for(pause_s, message):
    async def receive():
        asyncio.get_running_loop().now += pause_s
        for _ in range(3):  # steps in which the time limit is looked at
            await asyncio.sleep(0)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with (
        asyncio.Runner(loop_factory=ClockedLoop) as runner,
        pytest.raises(SlowCallerError, match=message),
    ):
        runner.run(read_body(receive, 500, timeout_s=0.05, max_bytes=1000))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_requests_that_contradict_themselves(served, request_bytes):
    assert converse(served, request_bytes, close=True).startswith(b"HTTP/1.1 400")
    assert served.get("/health").status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\n",
        b"",
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{",
    ],
)
def test_slow_callers_are_let_go(served, request_bytes):
    assert converse(served, request_bytes).startswith(b"HTTP/1.1 408")


def test_a_body_that_is_not_read_has_to_come_in_time(served):
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    host, port = served.netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(head)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 404")
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"x")
            while chunk := connection.recv(65536):
                answer += chunk
    assert b"HTTP/1.1 408" in answer


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"GET /health?", b"a" * 1000),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"a" * 1000),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X-Many: a\r\n" * 100),
    ],
    ids=["path", "header", "headers"],
)
def test_heads_that_do_not_end_are_not_kept(served, start, part):
    with contextlib.closing(socket.create_connection(served.netloc.split(":"))) as connection:
        connection.settimeout(120)
        connection.sendall(start)
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):
                connection.sendall(part)
            pytest.fail("the server takes it all")
    one_too_many = (start + part * 70)[: (1 << 16) + 1]
    assert converse(served, one_too_many).startswith(b"HTTP/1.1 431")


def test_many_requests_at_once_are_answered_one_after_the_other(served):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert converse(served, request * 49 + last).count(b'{"status":"ok"}') == 50
    assert converse(served, request * 2000 + last).count(b'{"status":"ok"}') == 2001


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 29\r\n\r\n" + BODY,
        b"Transfer-Encoding: chunked\r\n\r\n1d\r\n" + BODY + b"\r\n0\r\n\r\n",
    ],
    ids=["length", "chunked"],
)
def test_requests_behind_one_that_runs_are_not_kept(served, tmp_path, body):
    """They wait in the socket, and then here, until their caller can send no more."""
    gate = tmp_path / "gate"
    inputs = json.dumps({"inputs": {"x": [1.0], "action": f"until {gate}"}}).encode()
    head = b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    behind = head + body
    before = peak_memory(served)
    with contextlib.closing(socket.create_connection(served.netloc.split(":"))) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(inputs), inputs))
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.sendall(behind * 1_000_000)
        assert peak_memory(served) - before < 5_000_000
        gate.touch()
        connection.settimeout(60)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 500:
            answers += connection.recv(65536)


def test_a_caller_that_does_not_read_its_answer(served, wait_until):
    body = b"".join(encode_frames({"inputs": {"x": np.ones(2_000_000)}}).pieces)
    head = (
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
        b"Content-Type: application/vnd.chainrule.frames\r\n"
        b"Accept: application/vnd.chainrule.frames\r\n\r\n" % len(body)
    )
    before = connections(served)
    with contextlib.closing(socket.create_connection(served.netloc.split(":"))) as connection:
        connection.sendall(head + body)
        wait_until(lambda: connections(served) > before)
        wait_until(lambda: connections(served) <= before)


def connections(served):
    found = psutil.Process(served.process.pid).net_connections("tcp")
    return sum(each.status == "ESTABLISHED" for each in found)


def test_answers_that_nobody_waits_for_are_not_written():
    """uvicorn would log a traceback for each: a caller that sends and leaves could fill the disk."""

    class LeftTransport:
        """As uvloop has it when the caller has left."""

        def is_closing(self):
            return True

        def write(self, data):
            raise RuntimeError("unable to perform operation; the handler is closed")

    async def write() -> None:
        transport = CallerTransport(LeftTransport(), asyncio.get_running_loop())
        transport.write(b"HTTP/1.1 200 OK")
        await asyncio.sleep(0)
        transport.write(bytes(100_000))

    asyncio.run(write())


@pytest.mark.parametrize("together", [True, False], ids=["one packet", "two packets"])
@pytest.mark.parametrize(
    "length",
    ["Content-Length: {}\r\n", "Transfer-Encoding: chunked\r\n"],
    ids=["length", "chunked"],
)
def test_a_body_behind_an_upgrade_is_never_the_next_request(served, length, together):
    """`curl --http2` asks for an upgrade with every request; a proxy in front may pass that on."""
    smuggled = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = smuggled if "Length" in length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    head = (
        "POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        f"{length.format(len(body))}\r\n"
    ).encode()
    host, port = served.netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        for packet in [head + body] if together else [head, body]:
            with contextlib.suppress(ConnectionError):
                connection.sendall(packet)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"bad_upgrade" in answer


@pytest.mark.parametrize("together", [True, False], ids=["one packet", "two packets"])
def test_an_upgrade_without_a_body_is_ignored_and_the_last_request(served, together):
    """What follows in the same packet is lost: no caller may wait for its answer, or take another for it."""
    host, port = served.netloc.split(":")
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    following = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" if together else b""
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(head + following)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b'{"status":"ok"}')
        assert answer.count(b"HTTP/1.1") == 1


def test_a_parameter_that_is_given_twice(served):
    answer = served.post("/apply?run_id=a&run_id=b", {"inputs": {"x": [1.0]}})
    assert (answer.status, answer.problem["code"]) == (422, "bad_query")


def test_a_caller_that_leaves_in_the_middle_of_its_body(served):
    head = b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for size in (100, 1_000_000):
        converse(served, head + b"Content-Length: %d\r\n\r\n{" % size, close=True)
    assert served.apply().status == 200


def test_bodies_that_are_turned_away_leave_their_memory(start_server, tmp_path, wait_until):
    limited = start_server(workers=1, max_queue=0)
    gate = tmp_path / "gate"
    slow = limited.in_background(f"until {gate}")
    wait_until(lambda: limited.is_running)
    body = json.dumps({"inputs": {"x": [0.5] * 50_000}})
    statuses = [limited.request("POST", "/apply", body, JSON).status for _ in range(30)]
    assert statuses == [503] * 30
    gate.touch()
    assert slow.result().status == 200
    assert psutil.Process(limited.process.pid).num_fds() < 40
    limited.stop()


def test_more_bodies_than_the_server_may_hold(start_server, tmp_path, wait_until):
    limited = start_server(workers=1, max_inflight_bytes=1000, max_connections=10)
    assert limited.apply().status == 200
    gate = tmp_path / "gate"
    slow = limited.in_background(f"until {gate}")
    wait_until(lambda: limited.is_running)
    answer = limited.request("POST", "/apply", b" " * 999 + BODY, JSON)
    assert (answer.status, answer.problem["code"]) == (503, "memory_busy")
    head = (
        b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for body, status in (b" " * 999 + BODY, b"503"), (BODY, b"200"):  # of unknown length
        if status == b"200":
            gate.touch()
        answer = converse(limited, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert answer.startswith(b"HTTP/1.1 " + status)
    assert slow.result().status == 200
    for sent in b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n":
        with holding(limited, 60, sent):  # connections without a request, new ones and used ones
            answers = [limited.get("/health"), limited.get("/ready"), limited.apply()]
        assert [answer.status for answer in answers] == [200] * 3
    body = json.dumps({"inputs": {"x": [1.0], "action": f"until {tmp_path / 'later'}"}})
    job = limited.request("POST", "/apply?wait=false", body, JSON).headers["location"]
    follow = f"GET {job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with holding(limited, 60, follow):  # callers who follow a job
        assert limited.get("/status").status == 200
        (tmp_path / "later").touch()
        assert limited.apply().status == 200
    with holding(limited, 10, head):  # requests whose bodies do not come
        wait_until(lambda: limited.apply().status == 503)
        answer = limited.apply()
        assert limited.get("/health").status == limited.get("/ready").status == 200
    assert (answer.status, answer.problem["code"]) == (503, "connections_full")
    assert answer.headers["retry-after"] == "1"
    wait_until(lambda: limited.apply().status == 200)
    limited.stop()


@contextlib.contextmanager
def holding(served, count: int, data: bytes):
    """So many connections, over each of which the same was sent."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(served.netloc.split(":")))
            connection.sendall(data)
        yield


class Waiting(NamedTuple):
    address: str
    waits_since: float | None


def test_whoever_holds_most_connections_gives_way_first():
    crowd = [Waiting("many", float(k)) for k in range(10, 40)]
    others = [Waiting("one", 0.0), Waiting("two", 1.0), Waiting("two", 2.0), Waiting("busy", None)]
    assert longest_waiting({*crowd, *others}, 5) == crowd[:5]
    left = {*crowd[-2:], *others}
    assert longest_waiting(left, 3) == [others[1], crowd[-2], others[0]]


def test_descriptors_for_every_connection():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
    try:
        with enough_descriptors(400) as limit:
            assert (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 400) == (400, True)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        with enough_descriptors(10**9) as limit:
            assert 0 < limit < before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module", params=[0, 2], ids=["thread", "processes"])
def frugal(request, start_server):
    """Every worker may expand requests to four megabytes."""
    share = 4_000_000 * max(1, request.param)
    return start_server(workers=request.param, max_inflight_bytes=share)


def bombs(nbytes):
    """Small bodies that stand for so many bytes of zeros, or of spaces: JSON text counts twice."""
    x = {"inputs": {"x": np.zeros(nbytes // 8)}}
    frames, text = "vnd.chainrule.frames", b" " * (nbytes // 2) + b'{"inputs": {"x": [1.0]}}  '
    streamed = zstandard.ZstdCompressor().compressobj()  # which does not say how much it is
    yield b"".join(encode_body(x, format=frames, compression="zstd")), frames, ""
    yield b"".join(encode_body(x, format=frames, compression="lz4")), frames, ""
    yield b"".join(encode_body(x, format="json+base64", compression="lz4")), "json", ""
    yield zstandard.compress(text), "json", "zstd"
    yield streamed.compress(text) + streamed.flush(), "json", "zstd"
    yield gzip.compress(text), "json", "gzip"
    inner = b"".join(encode_body(x, format=frames, compression="zstd"))
    yield zstandard.compress(inner), frames, "zstd"


def test_small_bodies_that_stand_for_much_memory(frugal):
    """What a body expands to counts, and is refused before it is expanded."""
    for nbytes, status in ((3_900_000, 200), (4_100_000, 413)):
        for body, format, encoding in bombs(nbytes):
            assert len(body) < 200_000
            headers = {"Content-Type": f"application/{format}", "Content-Encoding": encoding}
            answer = frugal.request("POST", "/apply", body, headers)
            assert answer.status == status, (nbytes, format, encoding, answer.body[:300])
            if status == 413:
                is_text = encoding and format == "json"
                code = "too_many_values" if is_text else "expansion_too_large"
                assert answer.problem["code"] == code
                assert "--max-inflight-bytes" in answer.problem["message"]


def test_files_that_a_request_refers_to_count_as_well(start_server, tmp_path):
    config = {"input_path": str(tmp_path)}
    served = start_server(workers=0, max_inflight_bytes=4_000_000, config=config)
    np.zeros(600_000).tofile(tmp_path / "x.bin")
    for count, status in ((450_000, 200), (600_000, 413)):
        data = {"encoding": "binref", "buffer": "x.bin:0"}
        x = {"object_type": "array", "shape": [count], "dtype": "float64", "data": data}
        answer = served.request("POST", "/apply", json.dumps({"inputs": {"x": x}}), JSON)
        assert answer.status == status, answer.body[:300]
    served.stop()

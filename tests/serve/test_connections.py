"""Requests on kept connections, in packets of any size: one answer for each, in their order."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from pathlib import Path

import pytest
import uvloop

from chainrule.serve._connections import CallerTransport

TOKEN = "a-token-of-the-tests"


COMPONENT = str(Path(__file__).with_name("job_component.py"))


@pytest.fixture(scope="module")
def served(start_server):
    return start_server(components=COMPONENT, workers=0)


@pytest.fixture(scope="module")
def impatient(start_server):
    return start_server(components=COMPONENT, workers=0, read_timeout_s=2.0, timeout_s=0.3)


class Caller:
    """One connection on which the tests decide what is in which packet."""

    def __init__(self, served) -> None:
        host, port = served.netloc.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self._socket.sendall(packet)
            time.sleep(0.01)  # so that packets are not put together on the way

    def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        content = self._left
        while b"\r\n\r\n" not in content:
            content += self._more()
        head, _, body = content.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        while len(body) < int(headers["content-length"]):
            body += self._more()
        length = int(headers["content-length"])
        body, self._left = body[:length], body[length:]
        return int(status.split()[1]), headers, body

    def is_closed(self) -> bool:
        return self._socket.recv(1) == b""

    def _more(self) -> bytes:
        received = self._socket.recv(65536)
        assert received, "the server closed the connection"
        return received

    def ask(self, *packets: bytes):
        """The numbers that come back, or the status."""
        self.send(*packets)
        return self.answer()

    def answer(self):
        status, _, body = self.receive()
        return json.loads(body)["y"]["data"]["buffer"] if status == 200 else status


def request(x: float, *headers: str, action: str = "double", label: object = ""):
    """Head and body of a call."""
    inputs = {"x": [x], "action": action, "label": str(label)}
    body = json.dumps({"inputs": inputs}).encode()
    lines = [
        "POST /apply HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode(), body


def test_the_same_headers_again_in_any_packets(served):
    with Caller(served) as caller:
        for number in range(1, 9):
            head, body = request(float(number))
            ways = [
                (head + body,),
                (head, body),
                (head, body[:5], body[5:]),
                (head[:9], head[9:] + body),
            ]
            for packets in ways:
                assert caller.ask(*packets) == [2.0 * number]


def test_bodies_of_other_lengths_and_other_endpoints_in_between(served):
    with Caller(served) as caller:
        for number in (1.0, 1.0, 12345.0, 1.0, 0.125):
            head, body = request(number)
            assert caller.ask(head, body) == [2 * number]
            caller.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert caller.receive()[::2] == (200, b'{"status":"ok"}')


def test_several_requests_in_one_packet(served):
    with Caller(served) as caller:
        requests = [b"".join(request(float(number))) for number in range(1, 6)]
        caller.ask(requests[0])
        caller.send(requests[0], b"".join(requests), requests[4][:30])
        found = [json.loads(caller.receive()[2])["y"]["data"]["buffer"] for _ in range(6)]
        assert found == [[2.0], *([2.0 * number] for number in range(1, 6))]
        assert caller.ask(requests[4][30:]) == [10.0]


def test_an_answer_is_one_packet(served):
    with Caller(served) as caller:
        for number in range(1, 6):
            caller.send(b"".join(request(float(number))))
            packet = caller._more()
            assert packet.startswith(b"HTTP/1.1 200 OK\r\n")
            assert json.loads(packet.partition(b"\r\n\r\n")[2])["y"]["data"]["buffer"] == [
                2.0 * number
            ]


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_what_is_written_arrives_in_its_order_and_before_the_end(run):
    pieces = [bytes([k % 256]) * size for k, size in enumerate([1, 7, 100_000, 5] * 3 + [3] * 100)]

    class Writer(asyncio.Protocol):
        def connection_made(self, transport):
            quiet = CallerTransport(transport, asyncio.get_running_loop())
            for piece in pieces:
                quiet.write(piece)
            quiet.close()
            quiet.write(b"too late")

    async def read_all() -> bytes:
        server = await asyncio.get_running_loop().create_server(Writer, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            received = await reader.read()
            writer.close()
            return received

    assert run(read_all()) == b"".join(pieces)


def test_any_requests_in_any_packets(served):
    """Bodies with a length, in chunks, none, or not read; whatever is in a packet, each has its answer."""
    chance = random.Random(25)
    for _ in range(10):
        stream, expected = b"", []
        for number in range(chance.randint(1, 40)):
            sent, answer = chance.choice(SHAPES)(float(number), chance)
            stream += sent
            expected.append(answer)
        with Caller(served) as caller:
            while stream:
                size = chance.choice([1, 10, 100, 5_000, 9_000, 100_000, 1_000_000])
                packet, stream = stream[:size], stream[size:]
                caller.send(packet)
            assert [caller.answer() for _ in expected] == expected


def plain(number, chance):
    return b"".join(request(number)), [2 * number]


def large(number, chance):
    inputs = {"x": [number], "label": "a" * chance.choice([8_000, 9_000, 70_000, 300_000])}
    body = json.dumps({"inputs": inputs}).encode()
    head, _ = request(number)
    start, _, _ = head.rpartition(b"Content-Length")
    return b"%bContent-Length: %d\r\n\r\n%b" % (start, len(body), body), [2 * number]


def chunked(number, chance):
    head, body = request(number, "Transfer-Encoding: chunked", label="b" * 20_000)
    head = head.replace(b"Content-Length: %d\r\n" % len(body), b"")
    size = chance.choice([1_000, 7_000, 30_000])
    chunks = [body[k : k + size] for k in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n", [
        2 * number
    ]


def bare(number, chance):
    return b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404


def not_read(number, chance):
    length = chance.choice([1, 8_200, 200_000])
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length
    return head + b"x" * length, 404


SHAPES = (plain, large, chunked, bare, not_read)


def test_a_request_that_is_like_the_last_one_only_at_first(served):
    with Caller(served) as caller:
        head, body = request(1.0)
        for _ in range(3):
            assert caller.ask(head, body) == [2.0]
        other, _ = request(1.0, "Origin: https://elsewhere.example")
        assert caller.ask(other, body) == 403


def test_calls_that_take_longer_do_not_keep_others_waiting(served, tmp_path):
    told = tmp_path / "told"
    with Caller(served) as caller, Caller(served) as other:
        for _ in range(3):
            assert caller.ask(*request(1.0)) == [2.0]
        caller.send(*request(3.0, action="until_told", label=told))
        other.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.receive()[0] == 200
        told.touch()
        assert json.loads(caller.receive()[2])["y"]["data"]["buffer"] == [6.0]


def test_a_call_that_takes_too_long_is_answered_and_goes_on(impatient, tmp_path, wait_until):
    told = tmp_path / "told"
    with Caller(impatient) as caller:
        assert caller.ask(*request(3.0, action="until_told", label=told)) == 504
        told.touch()
        # Author code in a thread cannot be stopped: the next call waits for it, or times out as well.
        wait_until(lambda: caller.ask(*request(1.0)) == [2.0])


def test_failures_and_bad_requests(served):
    with Caller(served) as caller:
        head, body = request(1.0, action="raise")
        for _ in range(3):
            assert caller.ask(head + body) == 500
        assert caller.ask(head, b"}" * len(body)) == 422
        assert caller.ask(*request(1.0)) == [2.0]


def test_a_body_that_does_not_come(impatient):
    with Caller(impatient) as caller:
        caller.send(request(1.0)[0])
        assert caller.receive()[0] == 408
        assert caller.is_closed()


def test_a_caller_that_wants_to_leave(served):
    with Caller(served) as caller:
        head, body = request(1.0, "Connection: close")
        caller.send(head, body)
        status, headers, _ = caller.receive()
        assert (status, headers["connection"]) == (200, "close")
        assert caller.is_closed()


def test_a_body_in_chunks_is_answered_like_any_other(served):
    with Caller(served) as caller:
        answers = []
        for headers in [(), (), ("Transfer-Encoding: chunked",)]:
            head, body = request(1.0, *headers)
            if headers:
                head = head.replace(b"Content-Length: %d\r\n" % len(body), b"")
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            caller.send(head, body)
            answers.append(caller.receive())
    for status, headers, body in answers:
        headers.pop("date")
        assert (status, headers, body) == answers[0]


def test_every_call_is_counted(start_server):
    served = start_server(components=COMPONENT, workers=0)
    with Caller(served) as caller:
        for _ in range(10):
            assert caller.ask(*request(1.0)) == [2.0]
    assert served.metric("calls_answered_total") == 10
    assert not served.is_running
    served.stop()


def test_a_token_is_asked_for_with_every_request(start_server, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    token = str(tmp_path / "token")
    served = start_server(components=COMPONENT, workers=0, token_file=token)
    with Caller(served) as caller:
        head, body = request(1.0, f"Authorization: Bearer {TOKEN}")
        for _ in range(3):
            assert caller.ask(head, body) == [2.0]
        wrong = head.replace(TOKEN.encode(), b"b" + TOKEN.encode()[1:])
        assert caller.ask(wrong, body) == 401
    served.stop()

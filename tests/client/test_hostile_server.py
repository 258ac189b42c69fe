"""A server that is broken or hostile: its answers are bounded in bytes, and its callers in time."""

import asyncio
import json
import socket
import threading
from functools import partial

import numpy as np
import pytest

from chainrule._codec import encode_body
from chainrule.client import Component
from chainrule.client.internal import HttpTransport
from chainrule.errors import InputError, TransportError

DOCUMENT = {
    "info": {"title": "fake", "version": "1"},
    "paths": {"/apply": {}, "/health": {}},
    "components": {"schemas": {"ApplyInputSchema": {}, "ApplyOutputSchema": {}}},
    "x-supported-output-formats": ["json"],
}
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(content, content_type=b"application/json"):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: " + content_type
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(content) + content


def endless(start, chunk, pause_s=0.0):
    """Sends bytes for as long as the caller reads."""

    def send(connection, stop):
        connection.sendall(start)
        while not stop.wait(pause_s):
            connection.sendall(chunk)

    return send


@pytest.fixture
def serve():
    """Starts servers that answer what a function sends, and `/openapi.json` as it should be, or likewise."""
    stop, listeners = threading.Event(), []

    def start(answer, *, document=False):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def talk(connection):
            with connection:
                try:
                    while True:
                        head = b""
                        while b"\r\n\r\n" not in head:
                            part = connection.recv(65536)
                            if not part:
                                return
                            head += part
                        if b"/openapi.json" in head and not document:
                            connection.sendall(whole(json.dumps(DOCUMENT).encode()))
                        else:
                            answer(connection, stop)
                            return
                except OSError:
                    return

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    stop.set()
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def calls(component):
    """A call, its asynchronous twin, and the same on a thread of the client."""
    return [
        lambda: component.apply({}),
        lambda: asyncio.run(component.apply_async({})),
        lambda: component.submit("apply", {}).result(300),
    ]


def code_of(function):
    with pytest.raises(TransportError) as caught:
        function()
    return caught.value.code


CHUNK = b"%x\r\n" % (1 << 16) + b" " * (1 << 16) + b"\r\n"
ENDLESS = {
    "chunks": (JSON + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK),
    "until it closes": (JSON + b"\r\n", b" " * (1 << 16)),
    "declared": (JSON + b"Content-Length: 1000000000000000\r\n\r\n", b" "),
    "one byte too many": (JSON + b"Content-Length: 1048577\r\n\r\n", b" "),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_without_end(serve, kind):
    url = serve(endless(*ENDLESS[kind]))
    with Component.from_url(url, max_answer_bytes=1 << 20) as component:
        for call in calls(component):
            assert code_of(call) == "answer_too_large"


@pytest.mark.parametrize("kind", ["chunks", "until it closes", "declared"])
def test_a_document_without_end(serve, kind):
    url = serve(endless(*ENDLESS[kind]), document=True)
    with Component.from_url(url) as component:
        assert code_of(lambda: component.openapi_schema) == "answer_too_large"
        assert code_of(component.health) == "answer_too_large"


def test_an_answer_of_just_the_size_that_is_allowed(serve):
    content = b'{"y": 1}'
    url = serve(lambda connection, stop: connection.sendall(whole(content)))
    for limit, is_allowed in ((len(content), True), (len(content) - 1, False)):
        with Component.from_url(url, max_answer_bytes=limit) as component:
            if is_allowed:
                assert component.apply({}) == {"y": 1}
            else:
                assert code_of(lambda: component.apply({})) == "answer_too_large"


@pytest.mark.parametrize("length", [b"-5", b"+5", b"5x", b"", b"5, 5"])
def test_a_length_that_is_none(serve, length):
    url = serve(lambda c, stop: c.sendall(JSON + b"Content-Length: " + length + b"\r\n\r\n{}"))
    for call in calls(Component.from_url(url, timeout=120)):
        with pytest.raises(TransportError, match="Content-Length that is not a number") as caught:
            call()
        assert caught.value.code == "connection_lost"


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_small_answer_that_declares_a_large_array(serve, compression):
    tree = {"y": np.zeros(1 << 21)}
    content = b"".join(encode_body(tree, format="vnd.chainrule.frames", compression=compression))
    frames = b"application/vnd.chainrule.frames"
    url = serve(lambda connection, stop: connection.sendall(whole(content, frames)))
    assert len(content) < 1 << 20
    with Component.from_url(url, max_answer_bytes=1 << 20) as component:
        assert code_of(lambda: component.apply({})) == "answer_too_large"
    with Component.from_url(url) as component:
        np.testing.assert_array_equal(component.apply({})["y"], tree["y"])


# No byte comes later than 20 ms after the one before, and no answer is ever complete.
DRIPPING = {
    "status line": endless(b"HTTP/1.1 200 ", b"O", 0.02),
    "headers": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.02),
    "continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "body": endless(JSON + b"Content-Length: 100000\r\n\r\n", b" ", 0.02),
    "chunks": endless(JSON + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.02),
    "nothing": lambda connection, stop: stop.wait(),
}


@pytest.mark.parametrize("kind", DRIPPING)
def test_bytes_that_drip_do_not_extend_the_deadline(serve, kind):
    url = serve(DRIPPING[kind])
    with Component.from_url(url, timeout=0.3) as component:
        for call in calls(component):
            assert code_of(call) == "timeout"
    url = serve(DRIPPING[kind], document=True)
    with Component.from_url(url, timeout=0.3) as component:
        assert code_of(lambda: component.openapi_schema) == "timeout"


def test_retries_share_the_deadline(serve):
    """A call that may be repeated is not given its whole time again and again."""
    attempts = []

    def answer(connection, stop):
        attempts.append(1)
        stop.wait()

    with Component.from_url(serve(answer), timeout=0.3, idempotent=True, retries=50) as component:
        assert code_of(lambda: component.apply({})) == "timeout"
    assert len(attempts) <= 1  # none, where the machine is busy


def test_a_server_that_does_not_read(serve):
    """The body of the request is larger than what the system keeps for a reader."""
    url = serve(lambda connection, stop: stop.wait())
    with Component.from_url(url, timeout=0.3) as component:
        assert code_of(lambda: component.apply({"x": np.zeros(10_000_000)})) == "timeout"


def test_results_and_events_of_jobs(serve):
    for start, chunk in ENDLESS.values():
        url = serve(endless(start, chunk))
        server = HttpTransport(url, max_answer_bytes=1 << 20).server
        assert code_of(lambda server=server: server.result("1", None)) == "answer_too_large"
    for drip in DRIPPING.values():
        server = HttpTransport(serve(drip), timeout=0.3).server
        assert code_of(lambda server=server: server.result("1", None)) == "timeout"
        assert code_of(lambda server=server: server.job("1")) == "timeout"
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    comments = HttpTransport(serve(endless(stream, b": still here\n\n", 0.02))).server
    assert code_of(lambda: list(comments.events("1", timeout_s=0.3))) == "timeout"
    long_line = HttpTransport(serve(endless(stream + b"data: ", b"x" * 65536))).server
    assert code_of(lambda: list(long_line.events("1"))) == "connection_lost"


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b'{"jobs": [{"id": 1}]}'])
def test_what_answers_is_no_server_of_chainrule(serve, content):
    server = HttpTransport(serve(lambda c, stop: c.sendall(whole(content)))).server
    for ask in (server.status, server.jobs, lambda: server.job("j"), lambda: server.cancel("j")):
        assert code_of(ask) == "not_a_component"


@pytest.mark.parametrize(
    "part", [{"info": "x"}, {"info": {}}, {"info": {"title": 1, "version": "1"}}, {"paths": 1}]
)
def test_a_document_that_is_none(serve, part):
    content = whole(json.dumps(DOCUMENT | part).encode())
    url = serve(lambda c, stop: c.sendall(content), document=True)
    with Component.from_url(url) as component:
        assert code_of(partial(component.apply, {})) == "not_a_component"
    with Component.from_urls([url]) as component:
        # This server closes each connection unasked: the last that the handle knows may be a broken one.
        assert code_of(partial(component.apply, {})) in ("not_a_component", "pool_unavailable")


@pytest.mark.parametrize("event", [b"event: log\ndata: <html>\n\n", b"event: log\ndata: 1\n\n"])
def test_events_that_are_none(serve, event):
    content = whole(event, b"text/event-stream")
    server = HttpTransport(serve(lambda c, stop: c.sendall(content))).server
    assert code_of(lambda: list(server.events("j"))) == "connection_lost"


@pytest.mark.parametrize("limit", [0, -1, 1.5, None, "4"])
def test_limits_that_are_none(limit):
    with pytest.raises(InputError, match="max_answer_bytes"):
        Component.from_url("http://127.0.0.1:1", max_answer_bytes=limit)


UMBRIDGE = (
    {"models": ["m"]},
    {"support": {"Evaluate": True}},
    {"inputSizes": [2]},
    {"outputSizes": [1]},
    {"output": [[1.0]]},
)


def umbridge(serve, place, answer):
    """A server of UM-Bridge that answers the request at one place in another way."""
    answers = [json.dumps(each).encode() for each in UMBRIDGE]
    answers[place] = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    left = iter(answers)
    last = b"application/json\r\nConnection: close"
    return serve(
        lambda connection, stop: connection.sendall(whole(next(left), last)), document=True
    )


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        *((place, b"[" * 100_000) for place in range(4)),
        *((0, {"models": models}) for models in ([1, 2], [{}], "m", None)),
        *((1, {"support": support}) for support in ([1], None, "x")),
        *((2, {"inputSizes": s}) for s in (None, "ab", [-2], [2.5], [2**62], [True], [1] * 20_000)),
        (2, {"inputSizes": [2], "inputNames": 5}),
    ],
)
def test_answers_that_are_not_those_of_umbridge(serve, place, answer):
    url = umbridge(serve, place, answer)
    codes = ("not_umbridge", "answer_too_large")  # what is nested too deeply is too large
    assert code_of(lambda: Component.from_umbridge(url, timeout=120)) in codes


def test_messages_of_umbridge_are_short_and_visible(serve):
    error = {"error": {"type": "InvalidInput", "message": "\x1b[2J" + 10_000 * "x"}}
    component = Component.from_umbridge(umbridge(serve, 4, error), timeout=120)
    with pytest.raises(InputError) as caught:
        component.apply({"input_0": [1.0, 2.0]})
    assert "\\x1b[2J" in caught.value.message
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 2500


@pytest.mark.parametrize("kind", ENDLESS)
def test_answers_of_umbridge_without_end(serve, kind):
    url = serve(endless(*ENDLESS[kind]), document=True)
    opened = code_of(lambda: Component.from_umbridge(url, timeout=60, max_answer_bytes=1 << 20))
    assert opened == "answer_too_large"

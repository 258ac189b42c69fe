"""What happens between the client and a server: retries, losses, time limits, tokens."""

import asyncio
import json
import os
import pickle
import resource
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import replace

import numpy as np
import pytest

from chainrule.client import Component
from chainrule.client.internal import Answer, HttpTransport, read_answer
from chainrule.errors import ComponentError, InputError, NotGrantedError, TransportError
from waiting import wait_until

DOCUMENT = {
    "info": {"title": "fake", "version": "1"},
    "paths": {"/apply": {}, "/health": {}},
    "components": {"schemas": {"ApplyInputSchema": {}, "ApplyOutputSchema": {}}},
    "x-supported-output-formats": ["json"],
}


def response(status, body, content_type="application/json", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class FakeServer:
    """Answers `/openapi.json`, and every other request with the next entry of a script.

    An entry is the bytes to send, or a function of the connection; after `None`, and after the last one, the
    connection is closed: another program may expect another server at this port.
    """

    def __init__(self, *script, tls=None):
        self._tls = tls
        self.script = list(script)
        self.document = DOCUMENT
        self.requests = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                return
        with connection:
            while (request := read_request(connection)) is not None:
                if b"/openapi.json HTTP" in request:
                    connection.sendall(response(200, self.document))
                    continue
                self.requests.append(request)
                entry = self.script.pop(0) if self.script else None
                if entry is None:
                    return
                if callable(entry):
                    entry(connection)
                else:
                    connection.sendall(entry)

    def close(self):
        # Closed alone, it would go on listening until `accept` returns.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def fake():
    servers = []

    def make(*script, **options):
        servers.append(FakeServer(*script, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


OK = response(200, {"y": 1})
BUSY = response(503, {"code": "queue_full", "message": "busy"}, retry_after=0)


def test_connections_are_kept(fake):
    server = fake(OK, OK, OK)
    with Component.from_url(server.url) as component:
        for _ in range(3):
            assert component.apply({}) == {"y": 1}
    assert server.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(fake):
    closed = threading.Event()

    def answer_and_close(connection):
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    server = fake(answer_and_close, OK)
    component = Component.from_url(server.url, retries=0)
    assert component.apply({}) == {"y": 1}
    assert closed.wait(300)
    assert component.apply({}) == {"y": 1}
    component.close()


def test_a_call_that_was_turned_away_is_repeated(fake):
    server = fake(BUSY, BUSY, OK)
    assert Component.from_url(server.url).apply({}) == {"y": 1}
    assert len(server.requests) == 3


def test_a_call_that_keeps_being_turned_away_fails_in_the_end(fake):
    server = fake(BUSY, BUSY)
    with pytest.raises(TransportError) as caught:
        Component.from_url(server.url, retries=1).apply({})
    assert caught.value.code == "queue_full"


def test_map_comes_back_for_longer(fake, monkeypatch):
    monkeypatch.setattr("chainrule.client._http._FIRST_PAUSE_S", 1e-4)
    server = fake(*[BUSY] * 8, OK)
    assert list(Component.from_url(server.url, retries=1).map([{}])) == [{"y": 1}]
    assert len(server.requests) == 9


def test_without_retry_after_nothing_is_repeated(fake):
    server = fake(response(503, {"code": "stopping", "message": "bye"}))
    with pytest.raises(TransportError):
        Component.from_url(server.url).apply({})
    assert len(server.requests) == 1


def test_a_call_that_may_have_run_is_not_repeated(fake):
    server = fake(None, OK)
    with pytest.raises(TransportError) as caught:
        Component.from_url(server.url).apply({})
    assert caught.value.code == "connection_lost"
    assert len(server.requests) == 1


def test_unless_the_caller_says_that_twice_does_no_harm(fake):
    server = fake(None, OK)
    assert Component.from_url(server.url, idempotent=True).apply({}) == {"y": 1}
    assert len(server.requests) == 2


def test_an_answer_that_ends_early_is_a_loss(fake):
    def cut(connection):
        connection.sendall(OK[:-2])
        connection.shutdown(socket.SHUT_RDWR)

    with pytest.raises(TransportError) as caught:
        Component.from_url(fake(cut).url).apply({})
    assert caught.value.code == "connection_lost"


def test_something_else_listens(fake):
    server = fake()
    server.document = {"hello": "world"}
    with pytest.raises(TransportError) as caught:
        Component.from_url(server.url).apply({})
    assert caught.value.code == "not_a_component"


def test_nobody_listens(monkeypatch):
    attempts = []
    connect = socket.create_connection
    monkeypatch.setattr(
        socket, "create_connection", lambda *args: attempts.append(args) or connect(*args)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TransportError) as caught:
        Component.from_url(f"127.0.0.1:{port}", retries=2).apply({})
    assert caught.value.code == "unreachable"
    assert len(attempts) == 3


def test_a_silent_server(fake):
    over = threading.Event()
    server = fake(lambda connection: over.wait(300))
    with pytest.raises(TransportError) as caught:
        Component.from_url(server.url, timeout=0.2).apply({})
    over.set()
    assert caught.value.code == "timeout"


def test_a_body_that_is_refused_while_it_is_sent_brings_its_reason():
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse():
        first, _ = listener.accept()
        read_request(first)
        first.sendall(response(200, DOCUMENT))
        first.recv(1000)
        problem = {"code": "body_too_large", "message": "too large", "detail": []}
        first.sendall(response(413, problem, connection="close"))
        first.shutdown(socket.SHUT_WR)
        while first.recv(1 << 20):
            pass
        first.close()

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    with pytest.raises(InputError) as caught:
        Component.from_url(f"http://127.0.0.1:{port}").apply({"x": np.ones(1_000_000)})
    assert caught.value.code == "body_too_large"
    thread.join(300)
    listener.close()


def test_giving_up_closes_the_connection(fake):
    gone = threading.Event()

    def wait_for_the_end(connection):
        if connection.recv(1) == b"":
            gone.set()

    server = fake(wait_for_the_end)
    component = Component.from_url(server.url)
    job = component.submit("apply", {})
    wait_until(lambda: server.requests)
    job.cancel()
    with pytest.raises(TransportError) as caught:
        job.result(timeout=300)
    assert caught.value.code == "cancelled"
    assert job.status == "cancelled"
    assert gone.wait(300)
    component.close()


def test_giving_up_before_it_began(fake):
    gate = threading.Event()
    server = fake(lambda connection: gate.wait(300) and connection.sendall(OK))
    component = Component.from_url(server.url)
    component.transport.max_concurrency = 1
    first, second = component.submit("apply", {}), component.submit("apply", {})
    second.cancel()

    async def wait():
        return await second

    for ask in (lambda: second.result(300), lambda: asyncio.run(wait())):  # at once, and every time
        with pytest.raises(TransportError) as caught:
            ask()
        assert caught.value.code == "cancelled"
    assert second.done
    gate.set()
    assert first.result(300) == {"y": 1}
    assert len(server.requests) == 1
    component.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
         "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_encrypted_connections(fake, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    large = response(200, {"y": "x" * 100_000})
    server = fake(OK, large, OK, OK, tls=context)
    trusting = ssl.create_default_context(cafile=certificate[0])
    with Component.from_url(server.url, verify=trusting) as component:
        assert component.apply({"x": np.ones(30_000)}) == {"y": 1}
        assert len(component.apply({})["y"]) == 100_000
    for trust in (False, certificate[0]):
        with Component.from_url(server.url, verify=trust) as component:
            assert component.apply({}) == {"y": 1}
            assert pickle.loads(pickle.dumps(component)).transport.place == server.url
    with pytest.raises(TransportError, match="verify=FILE") as caught:
        Component.from_url(server.url, retries=0).apply({})
    assert caught.value.code == "unreachable"


def test_https_where_there_is_http(server):
    url = server.replace("http://", "https://")
    with pytest.raises(TransportError, match=r"as a server with TLS.*speak http://") as caught:
        Component.from_url(url, retries=0).health()
    assert caught.value.code == "unreachable"


def test_http_where_there_is_https(fake, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    url = fake(tls=context).url.replace("https://", "http://")
    with pytest.raises(TransportError, match="Does it speak https:// there") as caught:
        Component.from_url(url, retries=0).health()
    assert caught.value.code == "connection_lost"
    # One that has answered speaks http://.
    with Component.from_url(fake(OK, None).url, retries=0) as component:
        component.apply({})
        with pytest.raises(TransportError) as caught:
            component.apply({})
    assert "https://" not in caught.value.message


# What is sent


def test_a_tesseract_gets_base64_in_a_body_that_calls_itself_json(fake):
    server = fake(OK)
    Component.from_url(f"{server.url}/base/", token="secret").apply({"x": np.ones(2)}, run_id="a b")
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/apply?run_id=a%20b HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\n" in head
    assert b"Accept: application/json+base64; gpu_transport=none\r\n" in head
    assert b"Authorization: Bearer secret\r\n" in head
    sent = json.loads(body)["inputs"]["x"]
    assert sent["data"]["encoding"] == "base64"
    assert sent["shape"] == [2]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host", "http://", "http://host:port", "http://host:99999", "http://host:0", "http://[::1",
        "http://[::1].evil.example", "http://[::1]x:80",
        "http://user:word@host", None,
    ],
)  # fmt: skip
def test_what_is_not_a_url(url):
    with pytest.raises(InputError) as caught:
        HttpTransport(url)
    assert caught.value.code == "bad_url"


def test_addresses():
    assert HttpTransport("localhost:80/c/x").place == "http://localhost:80/c/x"
    assert HttpTransport("https://[::1]/").place == "https://[::1]:443"
    with pytest.raises(InputError):
        HttpTransport("http://host", token="two\r\nlines")


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0}, {"timeout": -1.0}, {"timeout": float("nan")}, {"timeout": "3"}, {"retries": -1},
        {"retries": 1.5}, {"verify": "there-is-no-such.pem"},
    ],
)  # fmt: skip
def test_options_that_make_no_sense(option):
    with pytest.raises(InputError) as caught:
        Component.from_url("https://host", **option)
    assert caught.value.code == "bad_option"


def test_a_token_is_a_text():
    with pytest.raises(InputError) as caught:
        HttpTransport("http://host", token=b"bytes")
    assert caught.value.code == "bad_token"


def test_a_name_that_no_server_can_have():
    with pytest.raises(TransportError) as caught:
        Component.from_url(f"http://{'a' * 70}.example", retries=0).health()
    assert caught.value.code == "unreachable"


def test_a_server_that_sends_callers_on(fake):
    server = fake(response(301, b"", location="https://elsewhere/"))
    with pytest.raises(TransportError, match="https://elsewhere/") as caught:
        Component.from_url(server.url).health()
    assert caught.value.code == "redirected"


def test_a_path_where_no_component_is(server):
    with pytest.raises(TransportError, match=r"/docs/openapi\.json") as caught:
        Component.from_url(f"{server}/docs").apply({})
    assert caught.value.code == "not_a_component"


def test_a_process_with_many_open_files(fake):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this process may not open so many")
    server = fake(OK, OK)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    others = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while others[-1] < 1100:  # `select.select` knows descriptors below 1024 only
            others.append(os.dup(others[0]))
        with Component.from_url(server.url) as component:
            component.apply({})
            component.apply({})
    finally:
        for other in others:
            os.close(other)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.connections == 1


def test_what_cannot_be_sent_is_the_callers_mistake(server):
    for shared in (True, False):
        with Component.from_url(server, share_memory=shared) as component:
            with pytest.raises(InputError) as caught:
                component.apply({"x": object()})
            assert (caught.value.code, caught.value.path) == ("not_encodable", "inputs.x")


# What comes back


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, NotGrantedError), (404, NotImplementedError), (410, NotImplementedError),
        (413, InputError), (422, InputError),
        (500, ComponentError), (502, TransportError), (504, TransportError), (507, OSError),
    ],
)  # fmt: skip
def test_every_status_has_its_exception(status, kind):
    problem = {"code": "some_code", "message": "why", "path": "a.b"}
    with pytest.raises(kind) as caught:
        read_answer(Answer(status, "application/problem+json", json.dumps(problem).encode()))
    assert caught.value.code == "some_code"
    assert caught.value.path == "a.b"
    with pytest.raises(kind):
        read_answer(Answer(status, "text/html", b"<html>a proxy says no</html>"))


def test_a_tesseracts_validation_errors_keep_their_list_and_lose_their_data():
    detail = [
        {"type": "missing", "loc": ["body", "inputs", "x"], "msg": "Field required", "input": {}}
    ]
    with pytest.raises(InputError, match="Field required") as caught:
        read_answer(Answer(422, "application/json", json.dumps({"detail": detail}).encode()))
    expected = {"type": "missing", "loc": ["inputs", "x"], "msg": "Field required", "path": "x"}
    assert caught.value.details["problems"] == [expected]


def test_a_tesseracts_traceback_is_attached():
    text = b"Traceback (most recent call last):\n  ...\nValueError: mesh is empty"
    with pytest.raises(ComponentError, match="mesh is empty") as caught:
        read_answer(Answer(500, "text/plain", text))
    assert caught.value.remote_traceback == text.decode()
    assert "Traceback" in caught.value.__notes__[0]


def test_a_token(tmp_path, start_server):
    token = "a-token-of-sufficient-length"
    (tmp_path / "token").write_text(token)
    with start_server(token_file=str(tmp_path / "token")) as url:
        with Component.from_url(url, token=token) as component:
            assert component.apply({"x": [1.0]})["total"] == 1.0
        for wrong in (token[::-1], None):
            with pytest.raises(NotGrantedError):
                Component.from_url(url, token=wrong).apply({"x": [1.0]})


LARGE = np.ones(100_000)


def requests_seen(component, count=3):
    """How the bodies of some calls with large arrays travelled."""
    seen = []
    exchange = component.transport._pool.exchange

    def record(request, *args):
        if request.method == "POST":
            seen.append("memory" if "Chainrule-Memory" in request.headers else "request")
        return exchange(request, *args)

    component.transport._pool.exchange = record
    try:
        for _ in range(count):
            np.testing.assert_array_equal(component.apply({"x": LARGE})["y"], 2 * LARGE)
    finally:
        component.transport._pool.exchange = exchange
    return seen


def test_memory_is_shared_with_a_server_on_this_host(server):
    for url, shared in [(server, True), (f"{server}/c/some_component", True), (server, False)]:
        with Component.from_url(url, share_memory=shared, timeout=60) as component:
            assert requests_seen(component) == ["memory" if shared else "request"] * 3


def test_a_server_that_does_not_offer_memory_is_used_as_it_is(start_server):
    with start_server(same_host=False) as url, Component.from_url(url, timeout=60) as component:
        assert requests_seen(component) == ["request"] * 3


def test_small_bodies_travel_in_the_request_and_large_answers_in_memory_from_the_second_on(server):
    with Component.from_url(server, timeout=60) as component:
        for _ in range(3):
            blocks = component.jacobian({"x": np.ones(200)}, ["x"], ["y"])
            np.testing.assert_array_equal(blocks["y"]["x"], 4 * np.eye(200))
        assert component.apply({"x": [1.0]})["total"] == 1.0


def test_answers_in_memory_are_bounded(server):
    with Component.from_url(server, timeout=60, max_answer_bytes=500_000) as component:
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                component.apply({"x": LARGE})
            assert caught.value.code == "answer_too_large"
        assert component.apply({"x": [1.0]})["total"] == 1.0


def test_memory_is_shared_again_with_a_server_that_was_restarted(server):
    with Component.from_url(server, timeout=60) as component:
        assert requests_seen(component, 1) == ["memory"]
        memory = component.transport._memory
        memory._idle._idle[0]._connection.close()  # as the channel is when the server has ended
        memory._offer = memory._offer._replace(address="of-the-server-before")
        assert requests_seen(component) == ["request", "memory", "memory"]


def test_memory_that_another_server_got_is_sent_again_in_the_request(server, start_server):
    """A proxy may send requests to one of several servers on this host."""
    with (
        start_server(same_host=True) as other,
        Component.from_url(server, timeout=60) as component,
        Component.from_url(other, timeout=60) as second,
    ):
        assert requests_seen(second, 1) == ["memory"]
        component.apply({"x": [1.0]})
        component.transport._memory._get_offer = second.transport._memory._get_offer
        assert requests_seen(component, 4) == ["memory", "request"] * 3 + ["request"]


def test_memory_is_shared_again_with_a_server_that_was_down_for_a_while(server, monkeypatch):
    with Component.from_url(server, timeout=60, retries=0) as component:
        requests_seen(component, 1)
        memory = component.transport._memory
        memory.close()
        memory._offer = memory._offer._replace(address="of-the-server-before")
        component.transport._pool.close()
        with monkeypatch.context() as down:
            pool = component.transport._pool
            down.setattr(pool, "origin", replace(pool.origin, port=1))
            for _ in range(4):
                with pytest.raises(TransportError):
                    component.apply({"x": LARGE})
        assert requests_seen(component) == ["memory"] * 3


def test_a_handle_can_be_sent_to_another_process(server):
    with Component.from_url(server, timeout=60) as component:
        component.apply({"x": [1.0]})
        with pickle.loads(pickle.dumps(component)) as other:
            assert other.transport.place == component.transport.place
            assert other.apply({"x": [2.0]})["total"] == 2.0


def test_a_forked_process_does_not_use_its_parents_connections(fake, monkeypatch):
    server = fake(OK, OK)
    component = Component.from_url(server.url)
    component.apply({})
    monkeypatch.setattr(os, "getpid", lambda: -1)
    component.apply({})
    assert server.connections == 2


def test_a_forked_process_has_threads_of_its_own():
    component = Component.from_api(double)
    assert len(list(component.map([{"x": 1.0}]))) == 1
    component._executor.shutdown()  # as it is in the forked process: no thread takes a call
    component._pid -= 1
    assert list(component.map([{"x": 2.0}])) == [{"result": 4.0}]


def double(x: float) -> float:
    return 2 * x


def test_many_threads_share_one_handle(server):
    with Component.from_url(server, timeout=60) as component:
        jobs = [component.submit("apply", {"x": np.full(3000, float(k))}) for k in range(40)]
        for k, job in enumerate(jobs):
            np.testing.assert_array_equal(job.result(300)["y"], np.full(3000, 2.0 * k * k))


def test_a_worker_that_dies_is_an_error_of_the_call_and_not_of_the_next(server):
    with Component.from_url(server, timeout=60) as component:
        with pytest.raises(TransportError) as caught:
            component.apply({"x": [1.0], "action": "exit"})
        assert caught.value.code == "worker_crashed"
        assert component.apply({"x": [1.0]})["total"] == 1.0

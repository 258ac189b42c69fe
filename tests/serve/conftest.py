"""Servers in processes of their own, and a caller that sees raw HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chainrule._codec import decode_body, encode_body
from waiting import wait_until

HERE = Path(__file__).parent
COMPONENT = str(HERE / "fault_component.py")
HANG_S = 300.0  # limits only end what hangs; how long things take is not tested


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def tree(self):
        return decode_body(self.body, media_type=self.headers["content-type"])

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.netloc = urlsplit(url).netloc

    def connect(self, timeout: float = HANG_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.netloc, timeout=timeout)

    def request(self, method: str, path: str, body=None, headers=None) -> Answer:
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, headers or {})
            return Answer(connection.getresponse())

    def get(self, path: str, headers=None) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, tree, *, format: str = "json", accept=None, headers=None) -> Answer:
        body = b"".join(encode_body(tree, format=format))
        sent = {"Content-Type": f"application/{format}", **(headers or {})}
        if accept:
            sent["Accept"] = accept
        return self.request("POST", path, body, sent)

    def apply(
        self, action: str = "double", seconds: float = 0.0, x=(1.0, 2.0), **options
    ) -> Answer:
        inputs = {"x": x if hasattr(x, "shape") else list(x), "action": action, "seconds": seconds}
        return self.post("/apply", {"inputs": inputs}, **options)

    def metric(self, name: str) -> int:
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(f"chainrule_{name}{{"):
                return int(line.split()[-1])
        raise AssertionError(name)

    @property
    def is_running(self) -> bool:
        return self.metric("calls_running") > 0

    def in_background(self, *args, **kwargs) -> Background:
        return Background(self, args, kwargs)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(HANG_S)


class Background(threading.Thread):
    """A call on a thread of its own."""

    def __init__(self, served: Served, args, kwargs) -> None:
        super().__init__(daemon=True)
        self._call = lambda: served.apply(*args, **kwargs)
        self._answer: Answer | None = None
        self.start()

    def run(self) -> None:
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            self._answer = self._call()

    def result(self, timeout: float = HANG_S) -> Answer:
        self.join(timeout)
        assert self._answer is not None, "no answer in time"
        return self._answer


def start(stderr=subprocess.DEVNULL, **settings) -> Served:
    settings = {"components": COMPONENT, "port": 0, "workers": 1, "grace_s": 5} | settings
    process = subprocess.Popen(
        [sys.executable, str(HERE / "run_server.py"), json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    url = process.stdout.readline().strip()
    process.stdout.close()
    if not url:
        process.kill()
        raise RuntimeError(f"the server did not start, status {process.wait()}")
    return Served(process, url)


@pytest.fixture(scope="session")
def start_server():
    """Starts servers; they stop at the end of the session, or earlier by `stop()`."""
    started: list[Served] = []

    def start_one(**settings) -> Served:
        started.append(start(**settings))
        return started[-1]

    yield start_one
    for served in started:
        served.stop()


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL for all tests of a process; each makes a database of its own."""
    from serve.postgres_server import PostgresServer

    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="session", name="wait_until")
def wait_until_fixture():
    return wait_until


@pytest.fixture(scope="session")
def component_path():
    return COMPONENT


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def served(start_server, folder):
    """A server with two workers that most tests share."""
    config = {
        "input_path": str(folder / "in"),
        "output_path": str(folder / "out"),
        "limits": {"max_body_bytes": 40_000_000, "max_array_bytes": 50_000_000},
    }
    (folder / "in").mkdir()
    return start_server(workers=2, config=config, read_timeout_s=2.0)


@pytest.fixture(scope="session", params=[0, 1], ids=["thread", "process"])
def any_served(request, start_server):
    """Both ways to run author code."""
    return start_server(workers=request.param)

"""Calls over HTTP and over shared memory: us, tesseract-core, and bare echoes on the same machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pybase64

from benchmarks import _servers
from benchmarks._harness import Row, interleaved, show
from chainrule._codec import FRAMES_MEDIA_TYPE, decode_frames, encode_frames
from chainrule.client import Component

_SMALL = json.dumps(
    {"inputs": {"x": {"object_type": "array", "shape": [1], "dtype": "float64",
                      "data": {"buffer": [1.0], "encoding": "json"}}}}
).encode()  # fmt: skip


class _Http:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def post(self, body: Any, content_type: str = "application/json", accept: str = "*/*") -> bytes:
        self._connection.request(
            "POST", "/apply", body, {"Content-Type": content_type, "Accept": accept}
        )
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content[:300]
        return content

    def get(self, path: str) -> Any:
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())


def _no_op_rows(stack: ExitStack, component: Any) -> list[Row]:
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    ports = {
        "echo": stack.enter_context(_servers.echo()),
        "thread": stack.enter_context(_servers.ours(component, 0)),
        "process": stack.enter_context(_servers.ours(component, 1)),
        "peer": stack.enter_context(_servers.peer(component, folder)),
        # As a user would who wants glibc's own settings: neither the server nor its worker changes them.
        "glibc": stack.enter_context(_servers.ours(component, 1, GLIBC_TUNABLES="")),
    }
    callers = {name: _Http(port) for name, port in ports.items() if name != "glibc"}
    seconds = _in_turns(
        {name: (lambda c=caller: c.post(_SMALL)) for name, caller in callers.items()}
    )
    echo = seconds["echo"]
    return [
        Row("no-op apply over HTTP, --workers 0", seconds["thread"], echo, "Starlette echo"),
        Row("no-op apply over HTTP, --workers 1", seconds["process"], echo, "Starlette echo"),
        Row("no-op apply over HTTP, --workers 1", seconds["process"], seconds["peer"],
            "tesseract-core", note=f"the peer takes {seconds['peer'] / echo:.1f} × the echo"),
        *_array_rows(stack, ports, folder, 1_000_000, "8 MB"),
        *_array_rows(stack, ports, folder, 10_000_000, "80 MB"),
        *_many_rows(ports),
        *_load_rows(ports),
    ]  # fmt: skip


def _in_turns(
    contestants: dict[str, Callable[[], object]], *, rounds: int = 400
) -> dict[str, float]:
    """One call each in turns: no contestant profits from caches that the same call has just warmed."""
    return interleaved(contestants, rounds=rounds, min_round_s=0.0)


def _many_rows(ports: dict[str, int]) -> list[Row]:
    """1000 one-element arrays there and back, per array."""
    body = json.dumps(
        {"inputs": {"x": [1.0], "many": {
            f"k{i}": {"object_type": "array", "shape": [1], "dtype": "float64",
                      "data": {"buffer": "AAAAAAAA8D8=", "encoding": "base64"}}
            for i in range(1000)}}}
    )  # fmt: skip
    accept = "application/json+base64"
    callers = {name: _Http(ports[name]) for name in ("process", "peer")}
    seconds = interleaved(
        {
            name: (lambda c=callers[name]: c.post(body, accept=accept))
            for name in ("process", "peer")
        },
        rounds=5,
    )
    us = seconds["process"] / 1000
    return [
        Row("one of 1000 small arrays there and back over HTTP", us, 20e-6, "the bar of 20 µs", 1.0),
        Row("one of 1000 small arrays there and back over HTTP", us, seconds["peer"] / 1000,
            "tesseract-core"),
    ]  # fmt: skip


def _array_rows(
    stack: ExitStack, ports: dict[str, int], folder: str, count: int, label: str
) -> list[Row]:
    x = np.random.default_rng(0).random(count)
    message = bytes(encode_frames({"inputs": {"x": x}}))
    target = np.empty_like(x)
    echo, process, peer, glibc = (
        _Http(ports[name]) for name in ("echo", "process", "peer", "glibc")
    )
    shared = stack.enter_context(Component.from_url(f"http://127.0.0.1:{ports['process']}"))
    inputs = {"x": x}

    def over_http(caller: _Http = process) -> None:
        answer = caller.post(message, FRAMES_MEDIA_TYPE, FRAMES_MEDIA_TYPE)
        decode_frames(answer)

    np.testing.assert_array_equal(shared.apply(inputs)["y"], x)
    seconds = interleaved(
        {
            "echo": lambda: echo.post(message, "application/octet-stream"),
            "us": over_http,
            "glibc": lambda: over_http(glibc),
            "shared": lambda: shared.apply(inputs),
            "memcpy": lambda: np.copyto(target, x),
            "two processes": stack.enter_context(_servers.memory_echo(x)),
            "peer": _peer_base64(peer, x),
            "peer files": _peer_files(peer, x, Path(folder)),
        },
        rounds=7,
        min_round_s=0.05,
    )
    return [
        Row(f"{label} there and back over HTTP", seconds["us"], seconds["echo"], "Starlette echo", 1.2),
        Row(f"{label} there and back over HTTP", seconds["us"], seconds["peer"], "tesseract-core",
            note="json+base64"),
        Row(f"{label} there and back over HTTP", seconds["us"], seconds["glibc"],
            "with glibc's own settings", 1 / 1.5,
            note="GLIBC_TUNABLES is set, so that freed memory goes back to the system"),
        Row(f"{label} there and back, shared memory", seconds["shared"], 2 * seconds["memcpy"],
            "one memcpy each way", 3.0 if count >= 10_000_000 else None),
        Row(f"{label} there and back, shared memory", seconds["shared"], seconds["two processes"],
            "two processes that only copy",
            note="the same copies, but into memory that another core has just used"),
        Row(f"{label} there and back, shared memory", seconds["shared"], seconds["peer files"],
            "tesseract-core", 1.0, note="its best: files in /dev/shm, written to a warm map"),
    ]  # fmt: skip


def _peer_base64(peer: _Http, x: np.ndarray[Any, Any]) -> Callable[[], None]:
    def call() -> None:
        body = json.dumps(
            {"inputs": {"x": {"object_type": "array", "shape": list(x.shape), "dtype": "float64",
                              "data": {"buffer": pybase64.b64encode_as_string(x.data),
                                       "encoding": "base64"}}}}
        )  # fmt: skip
        answer = json.loads(peer.post(body, accept="application/json+base64"))
        np.frombuffer(pybase64.b64decode(answer["y"]["data"]["buffer"]), np.float64)

    return call


def _peer_files(peer: _Http, x: np.ndarray[Any, Any], folder: Path) -> Callable[[], None]:
    """What the peer's client does with its pool of files: write to a warm map, map the answer, delete it."""
    warm = np.memmap(folder / f"pool_{x.size}.bin", x.dtype, "w+", shape=x.shape)
    body = json.dumps(
        {"inputs": {"x": {"object_type": "array", "shape": list(x.shape), "dtype": "float64",
                          "data": {"buffer": f"pool_{x.size}.bin:0", "encoding": "binref"}}}}
    )  # fmt: skip

    def call() -> None:
        np.copyto(warm, x)
        answer = json.loads(peer.post(body, accept="application/json+binref"))
        name, _, offset = answer["y"]["data"]["buffer"].rpartition(":")
        np.memmap(folder / name, x.dtype, "r", int(offset), x.shape)
        shutil.rmtree((folder / name).parent)

    return call


def _load_rows(ports: dict[str, int]) -> list[Row]:
    rates, slowest_health = {}, 0.0
    for name in ("thread", "process", "peer", "echo") * 2:
        rate, health = _load(ports[name])
        rates[name] = max(rate, rates.get(name, 0.0))
        if name == "process":
            slowest_health = max(slowest_health, health)
    return [
        Row(f"32 callers on the no-op, {what}: time per request", 1 / rates[name], 1 / rates["peer"],
            "tesseract-core", bar, note=f"{rates[name]:.0f} requests/s, no error")
        for name, what, bar in (
            ("thread", "one process each", None),
            ("process", "our server and its worker, one process there", 1 / 3),
        )
    ] + [
        Row("32 callers on the no-op, our server and its worker: time per request",
            1 / rates["process"], 1 / rates["echo"], "Starlette echo, which computes nothing"),
        Row("/health p99 meanwhile", slowest_health, 0.05, "the bar of 50 ms", 1.0),
    ]  # fmt: skip


def _load(port: int, callers: int = 32, seconds: float = 3.0) -> tuple[float, float]:
    """Requests per second of several callers, and the p99 of `/health` beside them."""
    deadline = time.perf_counter() + seconds
    counts = [0] * callers

    def call(index: int) -> None:
        with _RawCaller(port) as caller:
            while time.perf_counter() < deadline:
                caller.post()
                counts[index] += 1

    threads = [threading.Thread(target=call, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    health = []
    watcher = _Http(port)
    while time.perf_counter() < deadline:
        start = time.perf_counter()
        watcher.get("/health")
        health.append(time.perf_counter() - start)
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    return sum(counts) / seconds, float(np.quantile(health, 0.99))


class _RawCaller:
    """Sends one prepared request again and again; next to nothing of the machine goes to the caller."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"POST /apply HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(_SMALL)}\r\n\r\n"
        )
        self._request = head.encode() + _SMALL

    def __enter__(self) -> _RawCaller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self) -> None:
        self._socket.sendall(self._request)
        answer = self._socket.recv(65536)
        while not answer.endswith(b"}"):
            answer += self._socket.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]


def run() -> list[Row]:
    with contextlib.ExitStack() as stack:
        component = stack.enter_context(_servers.component_file())
        return _no_op_rows(stack, component)


if __name__ == "__main__":
    show(run())

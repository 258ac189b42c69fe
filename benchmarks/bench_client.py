"""Whole calls through the Python handles: our `Component` and the peer's `Tesseract`, side by side."""

from __future__ import annotations

import contextlib
import http.client
import tempfile
from typing import Any

import numpy as np

from benchmarks import _servers
from benchmarks._harness import Row, interleaved, show
from chainrule._codec import FRAMES_MEDIA_TYPE, encode_frames
from chainrule.client import Component


def run() -> list[Row]:
    from tesseract_core import Tesseract

    with contextlib.ExitStack() as stack:
        source = stack.enter_context(_servers.component_file())
        port = stack.enter_context(_servers.ours(source, 1))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        peer_port = stack.enter_context(_servers.peer(source, folder))
        peer = Tesseract.from_url(f"http://127.0.0.1:{peer_port}")
        url = f"http://127.0.0.1:{port}"
        handles = {
            "http": Component.from_url(url, share_memory=False),
            "http, from_urls": Component.from_urls([url], share_memory=False),
            "same host": Component.from_url(url),
            "own process": Component.from_source(source),
            "in process": Component.from_api(source),
        }
        for handle in handles.values():
            stack.enter_context(handle)
        return [*_no_op(handles, peer, port), *_array(handles, peer)]


def _no_op(handles: dict[str, Component], peer: Any, port: int) -> list[Row]:
    inputs = {"x": np.ones(1)}
    seconds = interleaved(
        {
            "bare": _bare_call(port),
            "peer": lambda: peer.apply(inputs),
            **{name: (lambda h=handle: h.apply(inputs)) for name, handle in handles.items()},
        },
        rounds=15,
    )
    rows = [
        Row(f"no-op apply, {name}", seconds[name], seconds["peer"], "Tesseract.from_url")
        for name in handles
    ]
    note = "what the handle adds to a bare request"
    return [
        *rows,
        Row("no-op apply, http", seconds["http"], seconds["bare"], "http.client", note=note),
        Row(
            "no-op apply, http, from_urls",
            seconds["http, from_urls"],
            seconds["http"],
            "from_url",
            note="what the choice of a server adds",
        ),
    ]


def _bare_call(port: int) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = bytes(encode_frames({"inputs": {"x": np.ones(1)}}))
    headers = {"Content-Type": FRAMES_MEDIA_TYPE, "Accept": FRAMES_MEDIA_TYPE}

    def call() -> None:
        connection.request("POST", "/apply", body, headers)
        connection.getresponse().read()

    return call


def _array(handles: dict[str, Component], peer: Any) -> list[Row]:
    x = np.random.default_rng(0).random(1_000_000)
    target = np.empty_like(x)
    inputs = {"x": x}
    seconds = interleaved(
        {
            "memcpy": lambda: np.copyto(target, x),
            "peer": lambda: peer.apply(inputs),
            **{name: (lambda h=handle: h.apply(inputs)) for name, handle in handles.items()},
        },
        rounds=9,
        min_round_s=0.05,
    )
    rows = [
        Row(f"8 MB there and back, {name}", seconds[name], seconds["peer"], "Tesseract.from_url")
        for name in handles
    ]
    twice = 2 * seconds["memcpy"]
    floor = "one memcpy each way"
    return [
        *rows,
        Row("8 MB there and back, same host", seconds["same host"], twice, floor),
        Row("8 MB there and back, own process", seconds["own process"], twice, floor),
    ]


if __name__ == "__main__":
    show(run())

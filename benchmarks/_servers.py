"""Servers for the HTTP figures, each in a process of its own: ours, the peer's, and a bare echo."""

from __future__ import annotations

import contextlib
import http.client
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

COMPONENT = """
from pydantic import BaseModel
from tesseract_core.runtime import Array, Float64

class InputSchema(BaseModel):
    x: Array[(None,), Float64]
    many: dict[str, Array[(None,), Float64]] = {}

class OutputSchema(BaseModel):
    y: Array[(None,), Float64]
    many: dict[str, Array[(None,), Float64]]

def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=inputs.x, many=inputs.many)
"""

ECHO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def echo(request):
    return Response(await request.body(), media_type="application/octet-stream")

async def health(request):
    return Response(b"{}", media_type="application/json")

routes = [Route("/apply", echo, methods=["POST"]), Route("/health", health)]
uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]),
            log_level="warning", access_log=False, timeout_keep_alive=60)
"""

OURS = """
import sys
from chainrule.serve import serve
serve(sys.argv[2], port=int(sys.argv[1]), workers=int(sys.argv[3]), max_queue=256)
"""

MEMORY_ECHO = """
import mmap, socket, sys
import numpy as np
there, back, channel, nbytes = map(int, sys.argv[1:])
source, target = (np.frombuffer(mmap.mmap(each, nbytes), np.uint8) for each in (there, back))
connection = socket.socket(fileno=channel)
while connection.recv(1):
    np.copyto(target, source)
    connection.send(b"x")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _process(command: list[str], port: int, **environment: str) -> Iterator[int]:
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError("a benchmark server ended early")
        with (
            contextlib.suppress(OSError),
            contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            ) as connection,
        ):
            connection.request("GET", "/health")
            connection.getresponse().read()
            return
        time.sleep(0.05)
    raise RuntimeError("a benchmark server did not start")


@contextlib.contextmanager
def component_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tesseract_api.py"
        path.write_text(COMPONENT)
        yield path


def echo() -> contextlib.AbstractContextManager[int]:
    port = free_port()
    return _process([sys.executable, "-c", ECHO, str(port)], port)


def ours(
    component: Path, workers: int, **environment: str
) -> contextlib.AbstractContextManager[int]:
    port = free_port()
    command = [sys.executable, "-c", OURS, str(port), str(component), str(workers)]
    return _process(command, port, **environment)


def peer(component: Path, folder: str) -> contextlib.AbstractContextManager[int]:
    """The peer's server; files of requests and answers lie in `folder`."""
    port = free_port()
    command = [sys.executable, "-m", "tesseract_core.runtime", "serve", "--port", str(port)]
    return _process(
        command,
        port,
        TESSERACT_API_PATH=str(component),
        TESSERACT_OUTPUT_PATH=folder,
        TESSERACT_INPUT_PATH=folder,
    )


@contextlib.contextmanager
def memory_echo(array: np.ndarray[Any, Any]) -> Iterator[Callable[[], None]]:
    """A call that copies an array into shared memory, from where another process copies it into other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = [os.memfd_create("chainrule-bench") for _ in range(2)]
    for descriptor in memory:
        os.ftruncate(descriptor, array.nbytes)
    descriptors = [*memory, theirs.fileno()]
    process = subprocess.Popen(
        [sys.executable, "-c", MEMORY_ECHO, *map(str, descriptors), str(array.nbytes)],
        pass_fds=descriptors,
    )
    theirs.close()
    there = np.frombuffer(mmap.mmap(memory[0], array.nbytes), array.dtype)

    def call() -> None:
        np.copyto(there, array)
        ours.send(b"x")
        ours.recv(1)

    with ours:
        yield call
    process.wait(10)
    for descriptor in memory:
        os.close(descriptor)

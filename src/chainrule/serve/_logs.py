"""Log lines of a server: one per request (`AccessLog`), and the output of author code (`Output`).

The access log has who asked for what (the address, and the name of the token), how it went and how long it
took; never the data. What author code prints goes to a file (`OutputLog`), or to the server's error stream
without control characters (`ErrorStream`).
"""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import os
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from chainrule._errors import StorageError
from chainrule._visible import visible

_log = logging.getLogger("chainrule.access")

RUN_ID = "chainrule.run_id"
"""Where the id of a run stands in an ASGI scope when the caller gave none."""
TOKEN_NAME = "chainrule.token_name"
"""Where the name of the caller's token stands in an ASGI scope."""

Message = MutableMapping[str, Any]

# What an ended process printed is in a pipe already; a process that the author started may hold it open.
_PATIENCE_S = 1.0


class AccessLog:
    """ASGI middleware that logs every request to `chainrule.access`.

    Calls without a run id get one, so that this line and those of the component can be put together. The
    query is not logged: it may hold what only the caller should know.

    Args:
        app: what answers.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Pass on, and log the end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        line = _Line(scope, send)
        scope[RUN_ID] = line.run_id
        try:
            await self._app(scope, receive, line.send)
        finally:
            line.write()


class _Line:
    def __init__(self, scope: Message, send: Any) -> None:
        self._start = time.perf_counter()
        self._scope = scope
        self._send = send
        self._status = 499
        self._sent = 0
        self.run_id = uuid.uuid4().hex

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._sent += _in_memory(message.get("headers", ()))
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)

    def write(self) -> None:
        scope = self._scope
        length = dict(scope["headers"]).get(b"content-length", b"0").decode("latin-1")
        facts: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "status": self._status,
            "seconds": round(time.perf_counter() - self._start, 6),
            "received": int(length) + _in_memory(scope["headers"]) if length.isdigit() else None,
            "sent": self._sent,
            "client": (scope.get("client") or [None])[0],
        }
        if TOKEN_NAME in scope:
            facts["token"] = scope[TOKEN_NAME]
        if scope["method"] == "POST":
            given = parse_qs(scope["query_string"].decode("latin-1")).get("run_id")
            facts["run_id"] = given[0] if given else scope[RUN_ID]
        text = " ".join(f"{name}={_shown(value)}" for name, value in facts.items())
        _log.info("%s", text, extra={"facts": facts})


def _in_memory(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """How many bytes of a body lie in shared memory (`_same_host`); the last word of a header says so."""
    size = dict(headers).get(b"chainrule-memory", b"").rpartition(b" ")[2]
    return int(size) if size.isdigit() and len(size) <= 18 else 0


def _shown(value: Any) -> str:
    """A value in a line of text; quoted where the caller chose it so that it might be taken for more."""
    text = str(value)
    return text if text.isprintable() and not {" ", '"'} & set(text) else json.dumps(text)


class Output(ABC):
    """Where the output of author code goes. Safe between threads."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    @abstractmethod
    def writer(self) -> Callable[[bytes], None]:
        """A function that takes what one source prints, piece by piece; it may raise `OSError`."""

    def follow(self) -> int:
        """A descriptor for a process to write to; what it writes comes here until it closes it."""
        reading, writing = os.pipe()
        thread = threading.Thread(
            target=self._copy, args=(reading,), name="chainrule-log", daemon=True
        )
        self._threads.add(thread)
        thread.start()
        return writing

    def close(self) -> None:
        """Wait until what was printed by processes that have ended is written; not for other processes."""
        deadline = time.monotonic() + _PATIENCE_S
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _copy(self, descriptor: int) -> None:
        write = self.writer()
        with open(descriptor, "rb", buffering=0) as source:
            while chunk := source.read(1 << 16):
                with contextlib.suppress(OSError):
                    write(chunk)
        self._threads.discard(threading.current_thread())


class ErrorStream(Output):
    """The server's error stream. Control characters are written out: it may be an operator's terminal."""

    def writer(self) -> Callable[[bytes], None]:
        # A character of several bytes may come in two pieces.
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

        def write(chunk: bytes) -> None:
            stream = sys.__stderr__
            if stream is not None:  # it is where the server was started without one
                stream.buffer.write(visible(decoder.decode(chunk)).encode())
                stream.buffer.flush()

        return write


class OutputLog(Output):
    """A log of bounded size: when it is full it becomes `<name>.1`, and a new one begins.

    A disk that is full costs log lines, not calls.

    Args:
        path: the file.
        max_bytes: size at which it is rotated; at most twice this is kept.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, *, max_bytes: int = 10 << 20) -> None:
        super().__init__()
        self._path = Path(path)
        self._max_bytes = max_bytes
        # Several threads write. The size is looked at and the file replaced as one step.
        self._lock = threading.Lock()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the server
        except OSError as error:
            raise StorageError(
                f"The log file {self._path} cannot be written: {error.strerror}."
            ) from error

    def writer(self) -> Callable[[bytes], None]:
        return self.write

    def write(self, chunk: bytes) -> None:
        """Append something, in a new file when this one is full."""
        with self._lock:
            if self._file.tell() + len(chunk) > self._max_bytes:
                self._file.close()
                os.replace(self._path, f"{self._path}.1")
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            self._file.write(chunk)

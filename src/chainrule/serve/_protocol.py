"""Limits on HTTP connections that uvicorn does not have.

uvicorn parses requests and runs the application. What is added here, by the callbacks of asyncio and of the
parser: the headers of a request have to arrive in time and have a bounded size, an answer has to be read in
time, and a connection may have a bounded number of requests. The application times bodies (`_bodies`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chainrule.serve._crowd import FOLLOWS, Crowd
from chainrule.serve._endpoint import turn_away
from chainrule.serve._security import is_probe


def _refusal(status: str) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
        "connection: close\r\n\r\n"
    ).encode()


_TIMEOUT_RESPONSE = _refusal("408 Request Timeout")
_HEAD_TOO_LARGE_RESPONSE = _refusal("431 Request Header Fields Too Large")
# Far above what callers and proxies send; it is kept in memory, and put together piece by piece.
_MAX_HEAD_BYTES = 1 << 16
# Requests that a caller may send before it has the answers to those before.
_MAX_PIPELINED = 100
_BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding"))


class RequestLimit:
    """ASGI middleware that answers 503 when as many requests are under way as may be.

    Args:
        app: answers the others.
        crowd: the bounds.
    """

    def __init__(self, app: Any, crowd: Crowd) -> None:
        self._app = app
        self._crowd = crowd
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on, or answer 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_full = self._crowd.is_full(self._running) and not is_probe(scope)
        self._running += 1
        try:
            await (turn_away if is_full else self._app)(scope, receive, send)
        finally:
            self._running -= 1


class QuietTransport:
    """A transport that drops what is written for a caller that has left.

    uvloop raises an error there, and uvicorn logs a traceback for each: a caller that sends requests and
    leaves could fill the disk.

    Args:
        transport: the loop's.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        """Write, unless the connection is closed or about to be."""
        if not self._transport.is_closing():
            self._transport.write(data)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on what callers send and on their time.

    Attributes:
        read_timeout_s: for the headers of a request, and for the next part of an answer to be read.
        crowd: the bounds of all connections together.
    """

    read_timeout_s = 30.0
    crowd = Crowd(1024)
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _waits_since = 0.0
    _got_on = False  # the last packet completed a head, brought some of a body, or ended a request
    _head_bytes = 0  # of packets that did not

    @classmethod
    def configured(cls, timeout_s: float, crowd: Crowd) -> type[LimitedHttpProtocol]:
        """The same protocol with other bounds."""
        return type(cls.__name__, (cls,), {"read_timeout_s": timeout_s, "crowd": crowd})

    @property
    def address(self) -> str:
        """Of the caller."""
        return self.client[0] if self.client else ""

    @property
    def waits_since(self) -> float | None:
        """Since when no request has been under way; one whose headers are not complete is none."""
        cycle = self.cycle
        is_asked = cycle is not None and not cycle.response_complete and FOLLOWS not in cycle.scope
        return None if is_asked else self._waits_since

    def give_way(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(QuietTransport(transport))  # type: ignore[arg-type]
        self._expect_head()
        self.crowd.thin_out(self.connections)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._forget_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._got_on = False
        super().data_received(data)
        self._head_bytes = 0 if self._got_on else self._head_bytes + len(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._end_with(_HEAD_TOO_LARGE_RESPONSE)

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._forget_head()
        self._got_on = True
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ConnectionError("too many requests at once")  # the parser stops: 400
        # The parser takes everything after a head with `Connection: Upgrade` for another protocol: the body
        # would be lost, and its bytes be read as the next request. Without a body, Upgrade is ignored.
        if self.parser.should_upgrade() and any(name in _BODY_HEADERS for name, _ in self.headers):
            raise ConnectionError("a request with a body asks for another protocol")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._got_on = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        super().on_response_complete()
        if (
            self.pipeline
        ):  # uvicorn would read on, and keep what it reads, faster than we can answer
            self.flow.pause_reading()

    def _expect_head(self) -> None:
        """Expect the headers of a request in time."""
        self._forget_head()
        self._waits_since = self.loop.time()
        self._head_timer = self.loop.call_later(
            self.read_timeout_s, self._end_with, _TIMEOUT_RESPONSE
        )

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_with(self, response: bytes) -> None:
        """End the connection; with an answer, if none of an earlier request is under way."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(response)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._forget_reader()
        super().resume_writing()

    def _watch_reader(self) -> None:
        """Expect the caller to take something of its answer in time."""
        unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(self.read_timeout_s, self._check_reader, unread)

    def _check_reader(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._waits_since = self.loop.time()
            self._watch_reader()
        else:
            self._reader_timer = None
            self.transport.abort()

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

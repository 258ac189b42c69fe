"""Limits on HTTP connections that uvicorn does not have.

uvicorn parses requests and runs the application. `LimitedHttpProtocol` adds, in the callbacks of asyncio and
of the parser: the headers of a request have to arrive in time and have a bounded size, an answer has to be
read in time, and a connection may have a bounded number of requests. The endpoint times bodies (`_endpoint`).

`ConnectionLimit` bounds all connections together. An open connection costs its holder nothing, so the number
of open ones says nothing about the load. What is limited is how many have a request under way. Others are
kept as long as there is room; when there is none, those that have waited the longest are closed, of the
address with the most connections first. So a caller that holds thousands of idle connections loses its own,
and no caller with a request is turned away because of them. A client that follows the events of a job counts
as waiting: when it is closed, it connects again and finds the job.

`TlsHandshake` counts TLS connections from the moment they are accepted. A server that leaves handshakes to
its event loop learns of a connection only afterwards; callers that connect and send nothing would use up its
descriptors unseen.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chainrule.serve._endpoint import turn_away
from chainrule.serve._security import is_probe

FOLLOWS = "chainrule.follows"
"""In the ASGI scope of a request that is answered, but whose answer goes on as things happen."""

_log = logging.getLogger(__name__)

# Descriptors for other things: files, workers, clients of the same host.
_OTHER_DESCRIPTORS = 256
_WARN_EVERY_S = 60.0
# A caller that keeps a TLS connection for later does not read that it is closed: the end is not waited for.
_GOODBYE_S = 1.0


class Connection(Protocol):
    """What is asked of a connection.

    Attributes:
        address: of the caller.
        waits_since: since when it has had no request under way; `None` while it has one.
    """

    @property
    def address(self) -> str: ...
    @property
    def waits_since(self) -> float | None: ...
    def give_way(self) -> None:
        """Close it at once."""


class ConnectionLimit:
    """The bounds on connections of one server.

    Args:
        limit: how many may have a request under way. As many may be open, and some more that are about to
            ask for something.

    Attributes:
        connections: all that are open; the web server's set.
    """

    def __init__(self, limit: int) -> None:
        self.connections: set[Connection] = set()
        self._limit = limit
        self._spare = spare_of(limit)
        self._warned_at: dict[str, float] = {}

    def is_full(self, running: int) -> bool:
        """Whether further requests are turned away.

        Args:
            running: how many are being answered, of those who follow something too. The connections are
                looked at only if that may be too many.
        """
        if running < self._limit:
            return False
        if sum(connection.waits_since is None for connection in self.connections) <= self._limit:
            return False
        self._warn("%d requests are under way; more are turned away (--max-connections).")
        return True

    def thin_out(self, connections: set[Connection]) -> None:
        """Close some of those that wait, if there are too many.

        Some at once, so that not every newcomer has all others looked at; fewer than there is spare room, so
        that a newcomer has the time to say what it wants.
        """
        if len(connections) <= self._limit + self._spare:
            return
        self._warn("More than %d connections; those without a request are closed.")
        for connection in longest_waiting(connections, self._spare // 2):
            connections.discard(connection)
            connection.give_way()

    def _warn(self, message: str) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(message, -math.inf) >= _WARN_EVERY_S:
            self._warned_at[message] = now
            _log.warning(message, self._limit)


def spare_of(limit: int) -> int:
    """How many connections may be open beyond the limit."""
    return max(16, limit // 16)


def longest_waiting(connections: Iterable[Connection], count: int) -> list[Connection]:
    """Those to close first: they have the most newer ones of their address, or else have waited longest.

    By a clock that goes on while a loop works: by that of the loop, all that are accepted in one turn of it
    would have come at the same time.
    """
    waiting = [(since, c) for c in connections if (since := c.waits_since) is not None]
    waiting.sort(key=itemgetter(0), reverse=True)
    newer: Counter[str] = Counter()
    ranked = []
    # Newest first, so that `newer[address]` is the number of younger idle connections of that address: the
    # k-th youngest has rank k. The largest ranks are the old connections of the address that has most; among
    # addresses with one connection each all ranks are 0, and -since lets the one that has waited longest go
    # first.
    for since, connection in waiting:
        ranked.append(((newer[connection.address], -since), connection))
        newer[connection.address] += 1
    return [connection for _, connection in heapq.nlargest(count, ranked, key=itemgetter(0))]


@contextlib.contextmanager
def enough_descriptors(limit: int) -> Iterator[int]:
    """Raise the limit of open files as far as this many connections need; gives how many there can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limit + spare_of(limit) + _OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield limit
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield limit if allowed == wanted else _fitting(limit, allowed)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _fitting(limit: int, descriptors: int) -> int:
    """How many connections this many descriptors are enough for, where that is fewer than wanted."""
    # At most half of what there is goes to other things, so that a process with very few descriptors still
    # accepts connections.
    room = descriptors - min(_OTHER_DESCRIPTORS, descriptors // 2)
    fitting = max(1, room - spare_of(room))
    _log.warning(
        "This process may open %d files: at most %d connections instead of %d. `ulimit -n` allows more.",
        descriptors,
        fitting,
        limit,
    )
    return fitting


def _refusal(status: str) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
        "connection: close\r\n\r\n"
    ).encode()


_TIMEOUT_RESPONSE = _refusal("408 Request Timeout")
_HEAD_TOO_LARGE_RESPONSE = _refusal("431 Request Header Fields Too Large")
# Far above what callers and proxies send; it is kept in memory, and put together piece by piece.
_MAX_HEAD_BYTES = 1 << 16
# Bytes of a write that waits for others, and how many wait.
_MAX_SMALL, _MOST_SMALL = 1 << 14, 16
# Requests that a caller may send before it has the answers to those before.
_MAX_PIPELINED = 100
_BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding"))


class RequestLimit:
    """ASGI middleware that answers 503 when the limit of requests under way is reached.

    Args:
        app: answers the others.
        connection_limit: the bounds.
    """

    def __init__(self, app: Any, connection_limit: ConnectionLimit) -> None:
        self._app = app
        self._limit = connection_limit
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on, or answer 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_full = self._limit.is_full(self._running) and not is_probe(scope)
        self._running += 1
        try:
            await (turn_away if is_full else self._app)(scope, receive, send)
        finally:
            self._running -= 1


class QuietTransport:
    """A transport that drops what is written for a caller that has left, and sends small writes together.

    uvloop raises an error for a caller that has left, and uvicorn logs a traceback for each: a caller that
    sends requests and leaves could fill the disk.

    uvicorn writes the head of an answer and its body one after the other, and uvloop makes a packet of each.
    Small writes wait here until the current step of the event loop ends: most answers are one packet.

    Args:
        transport: the loop's.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._small: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        """Write, unless the connection is closed or about to be."""
        if len(data) > _MAX_SMALL:
            self._send_small()
            self._send(data)
            return
        if not self._small:
            self._loop.call_soon(self._send_small)
        self._small.append(data)
        if len(self._small) == _MOST_SMALL:
            self._send_small()

    def close(self) -> None:
        """Close the connection after what has been written."""
        self._send_small()
        self._transport.close()

    def _send_small(self) -> None:
        if self._small:
            data = b"".join(self._small)
            self._small.clear()
            self._send(data)

    def _send(self, data: Any) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on what callers send and on their time.

    Args:
        read_timeout_s: for the headers of a request, and for the next part of an answer to be read.
        connection_limit: the bounds of all connections together.
        **state: what uvicorn gives to a protocol.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _waits_since = 0.0
    _got_on = False  # the last packet completed a head, brought some of a body, or ended a request
    _head_bytes = 0  # of packets that did not
    _is_in_head = False  # a request has begun, and its headers are not complete

    def __init__(
        self, read_timeout_s: float, connection_limit: ConnectionLimit, **state: Any
    ) -> None:
        super().__init__(**state)
        self.read_timeout_s = read_timeout_s
        self.connection_limit = connection_limit

    @property
    def address(self) -> str:
        """Of the caller."""
        return self.client[0] if self.client else ""

    @property
    def waits_since(self) -> float | None:
        """Since when no request has been under way; one whose headers are not complete does not count."""
        cycle = self.cycle
        is_asked = cycle is not None and not cycle.response_complete and FOLLOWS not in cycle.scope
        return None if is_asked else self._waits_since

    def give_way(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(QuietTransport(transport, self.loop))  # type: ignore[arg-type]
        self._expect_head()
        self.connection_limit.thin_out(self.connections)  # type: ignore[arg-type]

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
        elif self._is_in_head and self._head_timer is None:
            self._expect_head()  # most heads come in one packet, and need no timer

    def on_message_begin(self) -> None:
        self._forget_head()
        self._is_in_head = True
        self._waits_since = time.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._forget_head()
        self._got_on = True
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ConnectionError("too many requests at once")  # the parser stops: 400
        # The parser takes everything after a head with `Connection: Upgrade` for another protocol: the body
        # would be lost, and its bytes be read as the next request.
        is_upgrade = self.parser.should_upgrade()
        if is_upgrade and any(name in _BODY_HEADERS for name, _ in self.headers):
            raise ConnectionError("a request with a body asks for another protocol")
        super().on_headers_complete()
        if is_upgrade:
            # Without a body, Upgrade is ignored. A further request in the same packet is lost, and a proxy
            # would take the answer to a later one for its answer: this one is the last.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._got_on = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._waits_since = time.monotonic()
        super().on_response_complete()
        if self.pipeline:
            # uvicorn would read on, and keep what it reads, faster than requests are answered.
            self.flow.pause_reading()

    def _expect_head(self) -> None:
        """Expect the headers of a request in time."""
        self._waits_since = time.monotonic()
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
            self._waits_since = time.monotonic()
            self._watch_reader()
        else:
            self._reader_timer = None
            self.transport.abort()

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None


class TlsHandshake(asyncio.Protocol):
    """Takes a connection, and has it handed to the HTTP protocol when it is secure.

    Args:
        behind: the protocol for what comes then.
        context: certificate and key.
    """

    def __init__(self, behind: LimitedHttpProtocol, context: ssl.SSLContext) -> None:
        self._behind = behind
        self._context = context

    @property
    def waits_since(self) -> float | None:
        """Since when the caller has been here."""
        return self._since

    def give_way(self) -> None:
        """Close the connection at once."""
        with contextlib.suppress(OSError):  # the caller was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    shutdown = give_way

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake, over a transport that begins with it: this one has read nothing yet."""
        behind = self._behind
        self._since = time.monotonic()
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        # A copy of the descriptor outlives the transport, which closes its own in `abort`. Nothing has been
        # read of the handshake, because data comes at the earliest in the next step of the loop.
        self._socket = transport.get_extra_info("socket").dup()
        transport.abort()
        behind.connections.add(self)  # type: ignore[arg-type]
        behind.connection_limit.thin_out(behind.connections)  # type: ignore[arg-type]
        self._opening = behind.loop.create_task(self._open())

    async def _open(self) -> None:
        behind = self._behind
        try:
            await behind.loop.connect_accepted_socket(
                lambda: behind,
                self._socket,
                ssl=self._context,
                ssl_handshake_timeout=behind.read_timeout_s,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
        except OSError:  # no handshake, or none in time: the caller cannot be told
            self._socket.close()
        finally:
            behind.connections.discard(self)

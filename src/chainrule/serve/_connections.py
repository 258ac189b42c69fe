"""Limits on HTTP connections that uvicorn does not have.

uvicorn parses requests and runs the application; nothing of it is replaced. `Connection` stands between the
socket and uvicorn's protocol, and knows two interfaces only: that of protocols and transports (asyncio), and
that of applications (ASGI), where `RequestLimit` tells it when a request begins and ends. The headers of a
request have to arrive in time and have a bounded size, an answer has to be read in time, and requests that
come before earlier ones are answered wait in the socket. The endpoint times bodies (`_endpoint`).

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

from chainrule._errors import ChainruleError
from chainrule.serve._endpoint import send_reply, turn_away
from chainrule.serve._problems import problem_reply
from chainrule.serve._security import is_probe

FOLLOWS = "chainrule.follows"
"""In the ASGI scope of a request that is answered, but whose answer goes on as things happen."""

_log = logging.getLogger(__name__)

# Descriptors for other things: files, workers, clients of the same host.
_OTHER_DESCRIPTORS = 256
_WARN_EVERY_S = 60.0
# A caller that keeps a TLS connection for later does not read that it is closed: the end is not waited for.
_GOODBYE_S = 1.0


class OpenConnection(Protocol):
    """What is asked of a connection, also of one whose caller has not said anything yet.

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
        connections: all that are open.
    """

    def __init__(self, limit: int) -> None:
        self.connections: set[OpenConnection] = set()
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

    def thin_out(self) -> None:
        """Close some of those that wait, if there are too many.

        Some at once, so that not every newcomer has all others looked at; fewer than there is spare room, so
        that a newcomer has the time to say what it wants.
        """
        if len(self.connections) <= self._limit + self._spare:
            return
        self._warn("More than %d connections; those without a request are closed.")
        for connection in longest_waiting(self.connections, self._spare // 2):
            self.connections.discard(connection)
            connection.give_way()

    def end_handshakes(self) -> None:
        """Close those whose callers have not said who they are: uvicorn, which stops, does not know them."""
        for connection in tuple(self.connections):
            if isinstance(connection, TlsHandshake):
                connection.give_way()

    def _warn(self, message: str) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(message, -math.inf) >= _WARN_EVERY_S:
            self._warned_at[message] = now
            _log.warning(message, self._limit)


def spare_of(limit: int) -> int:
    """How many connections may be open beyond the limit."""
    return max(16, limit // 16)


def longest_waiting(connections: Iterable[OpenConnection], count: int) -> list[OpenConnection]:
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
# What uvicorn is given at a time of what may hold several requests: it keeps all that it is given. More of a
# body in chunks, of which only the end may be followed by others.
_PIECE, _CHUNKED_PIECE = 1 << 13, 1 << 15
# How much of requests to come is kept while one is under way; more waits in the socket.
_MAX_HELD_BYTES = 1 << 16
# Bytes of a write that waits for others, and how many wait.
_MAX_SMALL, _MOST_SMALL = 1 << 14, 16
# Where a request finds its connection, in the state of its ASGI scope.
_CONNECTION = "chainrule.connection"


class RequestLimit:
    """ASGI middleware that tells connections of their requests, and answers 503 when there are too many.

    Args:
        app: answers the others.
        connection_limit: the bounds.
    """

    def __init__(self, app: Any, connection_limit: ConnectionLimit) -> None:
        self._app = app
        self._limit = connection_limit
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on, or answer 503; or 400 where a body cannot be read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection = scope["state"][_CONNECTION]
        request = RunningRequest(scope, receive)
        connection.begin(request)
        app = self._app
        if self._limit.is_full(self._running) and not is_probe(scope):
            app = turn_away
        elif request.is_upgrade:
            # The parser takes what follows for another protocol, and reads no more requests. A body would be
            # lost, and what comes later of it be read as the next request: it is refused. Without a body the
            # wish is ignored.
            app = app if request.has_come else _refuse_upgrade
            send = _closing(send)
        self._running += 1
        try:
            await app(scope, request.receive, send)
        finally:
            self._running -= 1
            connection.end(request)


class RunningRequest:
    """One request as its connection sees it.

    Args:
        scope: of the request.
        receive: brings its body.

    Attributes:
        body_bytes: the length of its body as it is declared; `None` for a body in chunks.
        is_upgrade: it asks for another protocol.
        has_come: its body is complete.
    """

    def __init__(self, scope: Any, receive: Any) -> None:
        self._scope = scope
        self._receive = receive
        self.body_bytes: int | None = 0
        self.is_upgrade = scope["method"] == "CONNECT"
        for name, value in scope["headers"]:
            if name == b"content-length":
                self.body_bytes = int(value)  # the parser has checked it
            elif name == b"transfer-encoding":
                self.body_bytes = None
            elif name == b"upgrade":
                self.is_upgrade = True
        self.has_come = self.body_bytes == 0

    @property
    def is_followed(self) -> bool:
        """Whether it is answered, and the answer goes on as things happen."""
        return FOLLOWS in self._scope

    async def receive(self) -> Any:
        """The next message of its body."""
        message = await self._receive()
        if not message.get("more_body", False):
            self.has_come = True
        return message


class UpgradeError(ChainruleError):
    """A request with a body asks for another protocol: HTTP 400."""

    default_code = "bad_upgrade"
    http_status = 400
    exit_code = 2


async def _refuse_upgrade(scope: Any, receive: Any, send: Any) -> None:
    error = UpgradeError(
        "A request with a body cannot ask for another protocol (Upgrade). Switch that off in the client; "
        "Java's HttpClient does it for HTTP_2, curl for --http2."
    )
    await send_reply(send, problem_reply(error))


def _closing(send: Any) -> Any:
    """Sends answers after which the connection ends."""

    async def close(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return close


class CallerTransport:
    """The transport of a connection, as uvicorn's protocol sees it.

    What is written for a caller that has left is dropped: uvloop raises an error there, and uvicorn logs a
    traceback for each, so that a caller that sends requests and leaves could fill the disk. Reading goes on
    only when the connection wants that too.

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
        self._is_paused = self._is_held = False

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

    def pause_reading(self) -> None:
        """Read no more, for uvicorn."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless the connection holds back."""
        self._is_paused = False
        if not self._is_held:
            self._transport.resume_reading()

    def hold(self, is_held: bool) -> None:
        """Read no more, or read on, for the connection."""
        if is_held == self._is_held or self._transport.is_closing():
            return
        self._is_held = is_held
        if is_held:
            self._transport.pause_reading()
        elif not self._is_paused:
            self._transport.resume_reading()


class Connection(asyncio.Protocol):
    """uvicorn's protocol with bounds on what callers send and on their time.

    What comes is handed on to uvicorn in pieces. A piece that may complete the headers of a request is small,
    and the next one waits for a step of the event loop: by then the application has begun to answer
    (`begin`), if the headers are complete. While it does, only the body is handed on. What comes behind it
    waits here, and in the socket, until the request is over (`end`). So what uvicorn keeps of requests to
    come is what is in one piece, and a head is what comes while no request is under way.

    Args:
        read_timeout_s: for the headers of a request, and for the next part of an answer to be read.
        connection_limit: the bounds of all connections together.
        app_state: what uvicorn adds to the ASGI scope of every request.
        **state: what else uvicorn gives to a protocol.
    """

    def __init__(
        self,
        read_timeout_s: float,
        connection_limit: ConnectionLimit,
        *,
        app_state: dict[str, Any],
        **state: Any,
    ) -> None:
        self.read_timeout_s = read_timeout_s
        self.connection_limit = connection_limit
        self.address = ""
        self._loop = asyncio.get_running_loop()
        self._http = HttpToolsProtocol(app_state={**app_state, _CONNECTION: self}, **state)
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._request: RunningRequest | None = None
        self._held = bytearray()  # what uvicorn has not been given
        self._next_step: asyncio.Handle | None = None  # nothing is handed on before it
        self._head_bytes = 0
        self._body_bytes = 0  # how much of what comes can be of the body; more than that is not

    @property
    def waits_since(self) -> float | None:
        """Since when no request has been under way; one whose headers are not complete does not count."""
        is_asked = self._request is not None and not self._request.is_followed
        return None if is_asked else self._waits_since

    def give_way(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = CallerTransport(transport, self._loop)
        self.address = address_of(transport)
        self.connection_limit.connections.add(self)
        self._http.connection_made(self._transport)  # type: ignore[arg-type]
        self._expect_head()
        self.connection_limit.thin_out()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._forget_reader()
        self._held.clear()
        self.connection_limit.connections.discard(self)
        self._http.connection_lost(exc)

    def eof_received(self) -> None:
        self._http.eof_received()

    # What comes

    def data_received(self, data: bytes) -> None:
        if not self._held and len(data) <= self._room:
            self._hand_on(data)
            return
        self._held += data
        self._hand_on_held()
        self._transport.hold(len(self._held) > _MAX_HELD_BYTES)

    @property
    def _room(self) -> int:
        """How much may be handed on now."""
        if self._next_step is not None:
            return 0
        if self._body_bytes:
            return self._body_bytes
        if self._request is None:
            return _PIECE
        # A body in chunks ends where uvicorn says so, which is when the application reads it.
        is_open = self._request.body_bytes is None and not self._request.has_come
        return _CHUNKED_PIECE if is_open else 0

    def _on_step(self) -> None:
        self._next_step = None
        self._hand_on_held()
        self._transport.hold(len(self._held) > _MAX_HELD_BYTES)

    def _hand_on_held(self) -> None:
        while self._held and (room := self._room) and not self._transport.is_closing():
            with memoryview(self._held) as held:
                piece = bytes(held[:room])
            del self._held[:room]
            self._hand_on(piece)

    def _hand_on(self, data: bytes) -> None:
        if self._request is None and self._head_timer is None:
            self._expect_head()
        if self._body_bytes:
            self._body_bytes -= len(data)
            self._http.data_received(data)
            return
        if self._request is None:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._end_with(_HEAD_TOO_LARGE_RESPONSE)
                return
        # The order: uvicorn makes the task of a request when it is given the end of its headers, so that
        # `begin` comes before the next piece.
        self._http.data_received(data)
        self._wait_for_step()

    def _wait_for_step(self) -> None:
        if self._next_step is None:
            self._next_step = self._loop.call_soon(self._on_step)

    # What is answered

    def begin(self, request: RunningRequest) -> None:
        """The headers of a request are complete, and the application is about to answer it."""
        self._request = request
        self._head_bytes = 0
        self._body_bytes = request.body_bytes or 0
        self._forget_head()

    def end(self, request: RunningRequest) -> None:
        """A request is answered. If its body was not read, uvicorn drops what comes of it."""
        if request is not self._request:
            return  # uvicorn has begun the next one, of the same piece, with the end of this answer
        if request.has_come:
            self._body_bytes = 0
        self._request = None
        self._waits_since = time.monotonic()
        # uvloop hands on what comes before it runs the task of the next request.
        self._wait_for_step()

    def _expect_head(self) -> None:
        """Expect the headers of a request in time."""
        self._waits_since = time.monotonic()
        self._head_timer = self._loop.call_later(
            self.read_timeout_s, self._end_with, _TIMEOUT_RESPONSE
        )

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_with(self, response: bytes) -> None:
        """End the connection; with an answer, if none of an earlier request is under way."""
        if self._transport.is_closing():
            return
        if self._request is None:
            self._transport.write(response)
        self._transport.close()

    def pause_writing(self) -> None:
        self._http.pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._forget_reader()
        self._http.resume_writing()

    def _watch_reader(self) -> None:
        """Expect the caller to take something of its answer in time."""
        unread = self._transport.get_write_buffer_size()
        self._reader_timer = self._loop.call_later(self.read_timeout_s, self._check_reader, unread)

    def _check_reader(self, unread: int) -> None:
        if self._transport.get_write_buffer_size() < unread:
            self._waits_since = time.monotonic()
            self._watch_reader()
        else:
            self._reader_timer = None
            self._transport.abort()

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None


def address_of(transport: asyncio.BaseTransport) -> str:
    """Of the caller."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


class TlsHandshake(asyncio.Protocol):
    """Takes a connection, and has it handed to the HTTP protocol when it is secure.

    Args:
        behind: the protocol for what comes then.
        context: certificate and key.
    """

    def __init__(self, behind: Connection, context: ssl.SSLContext) -> None:
        self._behind = behind
        self._context = context
        self._loop = asyncio.get_running_loop()

    @property
    def waits_since(self) -> float | None:
        """Since when the caller has been here."""
        return self._since

    def give_way(self) -> None:
        """Close the connection at once."""
        with contextlib.suppress(OSError):  # the caller was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake, over a transport that begins with it: this one has read nothing yet."""
        limit = self._behind.connection_limit
        self._since = time.monotonic()
        self.address = address_of(transport)
        # A copy of the descriptor outlives the transport, which closes its own in `abort`. Nothing has been
        # read of the handshake, because data comes at the earliest in the next step of the loop.
        self._socket = transport.get_extra_info("socket").dup()
        transport.abort()
        limit.connections.add(self)
        limit.thin_out()
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        behind = self._behind
        try:
            await self._loop.connect_accepted_socket(
                lambda: behind,
                self._socket,
                ssl=self._context,
                ssl_handshake_timeout=behind.read_timeout_s,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
        except OSError:  # no handshake, or none in time: the caller cannot be told
            self._socket.close()
        finally:
            behind.connection_limit.connections.discard(self)

"""HTTP connections: requests have to come, and answers be read, in time; small ones are answered at once."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from chainrule.serve._calls import Reply
from chainrule.serve._crowd import FOLLOWS, Crowd
from chainrule.serve._endpoint import reply_headers, turn_away
from chainrule.serve._express import BEGUN, Begun, ExpressLane, Ticket
from chainrule.serve._security import is_probe

__all__ = ["GatheringTransport", "TimedHttpProtocol"]

Headers = list[tuple[bytes, bytes]]

_TIMEOUT_RESPONSE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)
_HEAD_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
# Far above what callers and proxies send; it is kept in memory, and put together piece by piece.
_MAX_HEAD_BYTES = 1 << 16
# Requests that a caller may send before it has the answers to those before.
_MAX_PIPELINED = 100
# More than this is written at once, so that a slow reader slows its writer down.
_MAX_GATHERED = 1 << 16


class TimedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on what callers send and on their time, and an express lane.

    Of requests that go through the application only the headers are timed here; it times their bodies.

    A caller sends the same headers again and again. A request on the express lane whose head is, byte for
    byte, that of the one before on this connection gets the same ticket: it is not parsed.
    """

    read_timeout_s = 30.0
    express_lane = ExpressLane()
    crowd = Crowd(1024)
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _is_timed = True
    _timed_since = 0.0
    _idle_since = 0.0
    _is_between = True  # requests: all bytes so far belong to complete ones
    _first_packet = b""  # of the present request
    _received = 0  # bytes of the present request
    _got_on = False  # the last packet completed a head, brought some of a body, or ended a request
    _head_bytes = 0  # of packets that did not
    _express: tuple[RequestResponseCycle, Ticket] | None = None
    _known: tuple[bytes, Ticket] | None = None
    _waits_for_body = False  # of a request that begins as the one that is known
    _begun: Begun | None = None

    @classmethod
    def configured(
        cls, timeout_s: float, express_lane: ExpressLane, crowd: Crowd
    ) -> type[TimedHttpProtocol]:
        """The same protocol with other bounds and another lane."""
        settings = {"read_timeout_s": timeout_s, "express_lane": express_lane, "crowd": crowd}
        return type("TimedHttpProtocol", (cls,), settings)

    def connection_made(self, transport: Any) -> None:
        self._gathering = GatheringTransport(transport, self.loop)
        super().connection_made(self._gathering)  # type: ignore[arg-type]
        self._begin_timing()
        self.crowd.thin_out(self.connections)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        """Of the caller."""
        return self.client[0] if self.client else ""

    @property
    def waits_since(self) -> float | None:
        """Since when no request has been under way; one that is not here yet is none."""
        cycle = self.cycle
        is_asked = cycle is not None and not cycle.response_complete and FOLLOWS not in cycle.scope
        is_under_way = is_asked and self._express is None
        return None if is_under_way else max(self._idle_since, self._timed_since)

    def give_way(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._known is None or not self._is_known(data, *self._known):
            self._parse(data)

    def _is_known(self, data: bytes, head: bytes, ticket: Ticket) -> bool:
        """Whether this is the last request again, or a part of it; if so, it is dealt with."""
        if self._waits_for_body:
            self._is_timed = self._waits_for_body = False
            if len(data) == ticket.nbytes:
                self._answer_again(head, ticket, data)
                return True
            self._parse(head)
            return False
        if not self._is_between or not (self.cycle is None or self.cycle.response_complete):
            return False
        if data == head:
            self._waits_for_body = True
            self._begin_timing()
            return True
        if len(data) == len(head) + ticket.nbytes and data.startswith(head):
            self._answer_again(head, ticket, data[len(head) :])
            return True
        return False

    def _answer_again(self, head: bytes, ticket: Ticket, body: bytes) -> None:
        begun = ticket.stop.begin(ticket.call.with_body(body))
        reply = None if begun is None else ticket.stop.wait(begun)
        if reply is not None and self._can_be_written(reply):
            self._write(reply, self.server_state.default_headers, keep_alive=True)
            self._gathering.flush()
            self.server_state.total_requests += 1
            self._idle_since = self.loop.time()
        else:
            self._begun = begun
            self._parse(head + body)

    def _parse(self, data: bytes) -> None:
        if self._is_between:
            self._first_packet, self._received = data, 0
        self._received += len(data)
        self._got_on = False
        super().data_received(data)
        self._head_bytes = 0 if self._got_on else self._head_bytes + len(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()
        if self._express is None or self.transport.is_closing():
            return
        if self._express[0].more_body:
            self._begin_timing()
        else:
            self._answer(*self._express)

    def on_message_begin(self) -> None:
        self._is_between = False
        if not self._is_timed:
            self._begin_timing()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_timed, self._got_on = False, True
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ConnectionError("too many requests at once")  # the parser stops: 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_timed, self._is_between, self._got_on = False, True, True
        super().on_message_complete()

    def _refuse_head(self) -> None:
        """End the connection; with an answer, if none of an earlier request is under way."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_HEAD_TOO_LARGE_RESPONSE)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._go_on(cycle, begun)
            return
        is_full = self.crowd.is_full(len(self.tasks), self.connections)  # type: ignore[arg-type]
        if is_full and not is_probe(cycle.scope):
            super()._start_asgi_task(cycle, turn_away)
            return
        ticket = None
        if cycle.more_body:
            ticket = self.express_lane.ticket_for(cycle.scope)
        if ticket is None:
            super()._start_asgi_task(cycle, app)
        else:
            self._express = cycle, ticket

    def _answer(self, cycle: RequestResponseCycle, ticket: Ticket) -> None:
        """Answer a small request that is here: now if it can be, as any other if not."""
        self._express = None
        self._remember(cycle, ticket)
        begun = ticket.stop.begin(ticket.call.with_body(bytes(cycle.body)))
        reply = None if begun is None else ticket.stop.wait(begun)
        if reply is not None and self._can_be_written(reply):
            cycle.response_complete = True
            self._write(reply, cycle.default_headers, keep_alive=cycle.keep_alive)
            self.on_response_complete()
        else:
            self._go_on(cycle, begun)

    def _go_on(self, cycle: RequestResponseCycle, begun: Begun | None) -> None:
        """Leave a request to the application, with what was begun for it."""
        cycle.scope[BEGUN] = begun  # type: ignore[literal-required]
        super()._start_asgi_task(cycle, self.app)

    def _remember(self, cycle: RequestResponseCycle, ticket: Ticket) -> None:
        """Know this request again, if it came alone and its connection stays open."""
        head, end, _ = self._first_packet.partition(b"\r\n\r\n")
        head += end
        came_alone = self._is_between and self._received == len(head) + ticket.nbytes
        self._known = (head, ticket) if came_alone and cycle.keep_alive else None

    def _can_be_written(self, reply: Reply) -> bool:
        return reply.nbytes <= _MAX_GATHERED and not self.flow.write_paused

    def _write(self, reply: Reply, default_headers: Headers, *, keep_alive: bool) -> None:
        headers = [*default_headers, *reply_headers(reply, reply.nbytes)]
        if not keep_alive:
            headers.append((b"connection", b"close"))
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join((STATUS_LINE[reply.status], *lines, b"\r\n", *reply.open())))
        if not keep_alive:
            self.transport.close()

    def on_response_complete(self) -> None:
        self._gathering.flush()
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if (
            self.pipeline
        ):  # uvicorn would read on, and keep what it has read, faster than we can answer
            self.flow.pause_reading()

    def _unsupported_upgrade_warning(self) -> None:
        """Callers may ask for other protocols and get this one; the operator need not hear of it."""

    def shutdown(self) -> None:
        if self._waits_for_body and self._known is not None:
            self._waits_for_body = False
            self._parse(self._known[0])
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._express = self._known = None
        self._is_timed = self._waits_for_body = False
        if self._timer is not None:
            self._timer.cancel()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _watch_reader(self) -> None:
        """Expect the caller to take something of its answer in time."""
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.read_timeout_s, self._check_reader, unread)

    def _check_reader(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._idle_since = self.loop.time()
            self._watch_reader()
        else:
            self._reading = None
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _begin_timing(self) -> None:
        """Expect the rest of the headers, or the next part of a small body, in time.

        A timer that is not needed any more is not stopped, which costs more than letting it run out once.
        """
        self._is_timed, self._timed_since = True, self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.read_timeout_s, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timer = None
        left_s = self._timed_since + self.read_timeout_s - self.loop.time()
        if not self._is_timed or self.transport.is_closing():
            return
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._on_timeout)
            return
        self.transport.write(_TIMEOUT_RESPONSE)
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._waits_for_body or left_s > 0:
            left_s = max(left_s, self.read_timeout_s if self._waits_for_body else 0.0)
            self.timeout_keep_alive_task = self.loop.call_later(
                left_s, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()


class GatheringTransport:
    """A transport that writes what it is given during one turn of the event loop at once.

    uvicorn writes the head of an answer and its body one after the other; on its way through the system a
    small packet costs as much as everything that we do for a small call.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[Any] = []
        self._nbytes = 0
        self._end_of_turn: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether the connection is being closed."""
        return self._transport.is_closing()

    def write(self, data: Any) -> None:
        """Write now or at the end of this turn."""
        self._gathered.append(data)
        self._nbytes += len(data)
        if self._nbytes > _MAX_GATHERED:
            self.flush()
        elif self._end_of_turn is None:
            self._end_of_turn = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was gathered; when the caller has left, nobody reads it."""
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None
        gathered, self._gathered, self._nbytes = self._gathered, [], 0
        if self._transport.is_closing():
            return
        if len(gathered) == 1:
            self._transport.write(gathered[0])
        elif gathered:
            self._transport.writelines(gathered)

    def close(self) -> None:
        """Close when everything is written."""
        self.flush()
        self._transport.close()

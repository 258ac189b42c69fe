"""HTTP connections: headers have to come in time, and an answer leaves in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["TimedHttpProtocol"]

_TIMEOUT_RESPONSE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)
# More than this is written at once, so that a slow reader slows its writer down.
_MAX_GATHERED = 1 << 16


class TimedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a bound on the time between the first byte and the end of the headers."""

    headers_timeout_s = 30.0
    _headers_timer: asyncio.TimerHandle | None = None
    _is_in_headers = True

    @classmethod
    def with_timeout(cls, timeout_s: float) -> type[TimedHttpProtocol]:
        """The same protocol with another bound."""
        return type("TimedHttpProtocol", (cls,), {"headers_timeout_s": timeout_s})

    def connection_made(self, transport: Any) -> None:
        self._gathering = _GatheringTransport(transport, self.loop)
        super().connection_made(self._gathering)  # type: ignore[arg-type]
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def on_message_begin(self) -> None:
        self._is_in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._gathering.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_in_headers = False
        self._watch_headers()
        super().connection_lost(exc)

    def _watch_headers(self) -> None:
        """Run a timer while headers are incomplete; most come in one packet and need none."""
        if self._is_in_headers and self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self.headers_timeout_s, self._on_timeout)
        elif not self._is_in_headers and self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _on_timeout(self) -> None:
        self._headers_timer = None
        if not self.transport.is_closing():
            self.transport.write(_TIMEOUT_RESPONSE)
            self.transport.close()


class _GatheringTransport:
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
        """Write what was gathered."""
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None
        gathered, self._gathered, self._nbytes = self._gathered, [], 0
        if len(gathered) == 1:
            self._transport.write(gathered[0])
        elif gathered:
            self._transport.writelines(gathered)

    def close(self) -> None:
        """Close when everything is written."""
        self.flush()
        self._transport.close()

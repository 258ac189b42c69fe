"""HTTP connections that do not wait for ever for a request's headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["TimedHttpProtocol"]

_TIMEOUT_RESPONSE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)


class TimedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a bound on the time between the first byte and the end of the headers."""

    headers_timeout_s = 30.0
    _headers_timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_timeout(cls, timeout_s: float) -> type[TimedHttpProtocol]:
        """The same protocol with another bound."""
        return type("TimedHttpProtocol", (cls,), {"headers_timeout_s": timeout_s})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._headers_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._headers_timer = self.loop.call_later(self.headers_timeout_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _on_timeout(self) -> None:
        self._headers_timer = None
        if not self.transport.is_closing():
            self.transport.write(_TIMEOUT_RESPONSE)
            self.transport.close()

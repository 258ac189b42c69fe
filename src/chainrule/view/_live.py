"""A page that follows a run: a small server on loopback, with server-sent events.

Only a browser on this machine reaches it. A page of another site that the browser has open may try, too, by
letting its own name point here; the name then stands in `Host` or `Origin`, and the request is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""How long a browser may take to read, or to come at all when a tab was opened for it."""
_HEADERS = {
    "Cache-Control": "no-store",
    # A notebook on this machine shows the page in a cell.
    "Content-Security-Policy": "frame-ancestors http://127.0.0.1:* http://localhost:*",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer(ThreadingHTTPServer):
    """Serves a page and the events that follow, until it is closed.

    Args:
        page: the document.
        events: what a browser gets from its arrival on, one text after the other, until the run has ended.
    """

    daemon_threads = True  # a run that ends without `with` ends its process, too

    def __init__(self, page: Callable[[], str], events: Callable[[], Iterator[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page, self.events = page, events
        self.visited = threading.Event()
        self._readers: list[threading.Thread] = []
        port = self.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._thread = threading.Thread(
            target=self.serve_forever, name="chainrule-watch", daemon=True
        )
        self._thread.start()

    def read(self, write: Callable[[bytes], Any]) -> None:
        """Send events to one browser until there are no more."""
        self._readers.append(threading.current_thread())
        self.visited.set()
        for each in self.events():
            write(each)

    def close(self, *, is_expected: bool) -> None:
        """End when every browser has got the last event.

        Args:
            is_expected: a tab was opened; its browser may still be on the way.
        """
        if is_expected:
            self.visited.wait(_PATIENCE_S)
        self.shutdown()
        self._thread.join()
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error of the run."""
        _log.debug("A request of the live page failed.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        if not self._is_from_here():
            self.send_error(403, "Only pages of this machine are answered")
        elif self.path == "/":
            self._start("text/html; charset=utf-8")
            self.wfile.write(self.server.page().encode())
        elif self.path == "/events":
            self._start("text/event-stream")
            self.server.read(self.wfile.write)
        else:
            self.send_error(404)

    def _is_from_here(self) -> bool:
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in self.server.hosts and (
            origin is None or origin.removeprefix("http://") in self.server.hosts
        )

    def _start(self, media_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def event(name: str, data: bytes) -> bytes:
    """A server-sent event; JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)

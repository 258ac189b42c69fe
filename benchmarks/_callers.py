"""Callers of a server that take no notable time themselves: one thread, one socket for each caller."""

from __future__ import annotations

import selectors
import socket
import time


class _Caller:
    """A connection on which the same request is sent again as soon as its answer is there."""

    def __init__(self, netloc: str, request: bytes) -> None:
        host, port = netloc.split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._head = b""
        self._missing: int | None = None

    def send(self) -> None:
        self._head, self._missing = b"", None
        self.socket.sendall(self._request)

    def has_answer(self) -> bool:
        """Read what is there; whether the answer is complete."""
        received = self.socket.recv(1 << 20)
        if not received:
            raise RuntimeError("the server closed the connection")
        if self._missing is None:
            self._head += received
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return False
            first, *lines = head.lower().split(b"\r\n")
            if b" 200 " not in first + b" ":
                raise RuntimeError(f"the server answered {first!r}")
            length = next(line for line in lines if line.startswith(b"content-length:"))
            self._missing = int(length.split(b":")[1]) - len(body)
        else:
            self._missing -= len(received)
        return self._missing <= 0


def seconds_per_request(
    netloc: str, request: bytes, callers: int, *, duration_s: float = 0.3
) -> float:
    """Time over answered requests, of callers who each wait for an answer before they ask again."""
    connections = [_Caller(netloc, request) for _ in range(callers)]
    count, begin = 0, time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send()
        waiting = callers
        while waiting:
            for key, _ in selector.select():
                if not key.data.has_answer():
                    continue
                count += 1
                if time.perf_counter() - begin < duration_s:
                    key.data.send()
                else:
                    waiting -= 1
    seconds = (time.perf_counter() - begin) / count
    for connection in connections:
        connection.socket.close()
    return seconds

"""Shared memory with a server on the same host, found out by trying.

The server offers an address and a secret over HTTP. That the address can be connected to proves the same
host, that the secret is accepted proves the same server; where either fails, HTTP stays in use and nobody
notices.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson

from chainrule._errors import ChainruleError
from chainrule.client._answers import Answer
from chainrule.client._connections import LostConnectionError
from chainrule.client._packets import PacketConnection
from chainrule.client._transport import Ticket
from chainrule.runtime._codec import Frames
from chainrule.runtime._samehost import connect, is_supported, limit_waiting

__all__ = ["SameHost", "try_same_host"]


def try_same_host(offer: Callable[[], Answer], timeout_s: float | None) -> SameHost | None:
    """A way to share memory with a server, or `None` when there is none.

    Args:
        offer: asks the server for its offer over HTTP.
        timeout_s: how long a call may take.
    """
    if not is_supported():
        return None
    try:
        answer = offer()
        if answer.status != HTTPStatus.OK:
            return None
        content = orjson.loads(bytes(answer.body))
        same_host = SameHost(str(content["address"]), str(content["secret"]), timeout_s)
        same_host.give_back(same_host.connect())
        return same_host
    except (ChainruleError, OSError, ValueError, KeyError, TypeError):
        return None


class SameHost:
    """Connections to a server on this host. Safe between threads.

    Args:
        address: of the server's socket.
        secret: by which the server knows us.
        timeout_s: how long a call may take.
    """

    def __init__(self, address: str, secret: str, timeout_s: float | None) -> None:
        self._address = address
        self._secret = secret
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._idle: list[PacketConnection] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def exchange(self, header: dict[str, Any], body: Frames, ticket: Ticket) -> Answer:
        """Have a call answered; the header is one of `chainrule.runtime._samehost`.

        Raises:
            LostConnectionError: the connection broke.
            OSError: the server is gone; nothing was sent.
        """
        connection = self._take()
        ticket.when_cancelled(connection.break_off)
        try:
            answer = connection.exchange(header, body)
        except BaseException:
            connection.close()
            raise
        finally:
            ticket.when_cancelled(None)
        self.give_back(connection)
        return answer

    def connect(self) -> PacketConnection:
        """A new connection that has introduced itself.

        Raises:
            OSError: nobody is there, or it does not accept us.
        """
        raw = connect(self._address)
        connection = PacketConnection(raw, "the server on this host")
        try:
            hello = connection.exchange({"op": "hello", "secret": self._secret}, Frames((), 0))
            is_accepted = hello.status == HTTPStatus.OK
        except LostConnectionError:
            is_accepted = False
        if not is_accepted:
            connection.close()
            raise ConnectionRefusedError("the server does not accept our secret")
        limit_waiting(raw, self._timeout_s)
        return connection

    def give_back(self, connection: PacketConnection) -> None:
        """Keep a connection for the next call."""
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            _close_all(self._idle)

    def _take(self) -> PacketConnection:
        with self._lock:
            if self._pid != os.getpid():
                # After a fork the connections belong to the parent: two readers would mix answers up.
                self._pid = os.getpid()
                _close_all(self._idle)
            if self._idle:
                return self._idle.pop()
        return self.connect()


def _close_all(idle: list[PacketConnection]) -> None:
    while idle:
        idle.pop().close()

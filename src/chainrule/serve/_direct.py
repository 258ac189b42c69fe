"""Clients of the same host that talk to a worker itself: the worker's side of a lease.

A lent worker reads calls from the clients' own connections and replies there; the server's event loop does
not see them. What the server must know to watch over it stands in a `CallSlot`. Everything here stays as it
is for a client: connection, messages and segments are those of `chainrule.runtime._samehost`.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chainrule._errors import ChainruleError, LimitError
from chainrule.runtime._samehost import (
    CallSlot,
    Message,
    Patience,
    is_well_formed,
    receive_message,
    send_message,
)
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call
from chainrule.serve._desk import Desk, StoredReply

__all__ = ["DirectClients"]

Row = tuple[str, int, float, int, int]
"""One answered call: endpoint, status, seconds, bytes received and sent."""

_TELL_EVERY_S = 0.2
_MAX_TALLY = 256
# What a worker understands. A message that says more is left to the server.
_UNDERSTOOD = frozenset(
    ("path", "number", "content_type", "accept", "run_id", "traceparent", "release", "segment")
)
_SAID = ("path", "content_type", "accept", "run_id", "traceparent")


class _Client:
    """One connection, and the segments of ours that its owner still reads."""

    def __init__(self, number: int, connection: socket.socket, lent: Sequence[str]) -> None:
        self.number = number
        self.connection = connection
        self.lent = set(lent)


class DirectClients:
    """The connections that a worker reads itself. One thread only.

    Args:
        desk: where calls are answered.
        answerer: of the component.
        slot: where the worker says what it is doing.
        control: descriptor that becomes readable when the server has something to say.
        max_body_bytes: larger bodies are refused.
        tell: gives the server a message: a header and, if there are any, a body and descriptors.
    """

    def __init__(
        self,
        desk: Desk,
        answerer: Answerer,
        slot: CallSlot,
        control: int,
        *,
        max_body_bytes: int,
        tell: Callable[..., None],
    ) -> None:
        self._desk = desk
        self._answerer = answerer
        self._slot = slot
        self._control = control
        self._max_body_bytes = max_body_bytes
        self._tell = tell
        self._endpoints: Mapping[str, str] = {}
        self._clients: dict[int, _Client] = {}
        self._said: tuple[Any, ...] = ()
        self._said_call = Call("", b"")
        self._tally: list[Row] = []
        self._told_at = 0.0
        self._patience = Patience(steps_aside=True)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def add(
        self, number: int, descriptor: int, lent: Sequence[str], endpoints: Mapping[str, str]
    ) -> None:
        """Read calls of one more client.

        Args:
            number: of the connection, unique in the server.
            descriptor: of the connection; ours from now on.
            lent: keys of our segments that this client still reads.
            endpoints: path → endpoint of the component.
        """
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        self._endpoints = endpoints
        self._clients[descriptor] = _Client(number, connection, lent)
        self._poll.register(descriptor, select.POLLIN)

    def leave_all(self) -> tuple[dict[str, list[str]], list[Row]]:
        """Leave all clients to the server.

        Returns:
            Number of the client → keys of our segments that it still reads; and what was answered since
            the server was last told.
        """
        held = {str(client.number): list(client.lent) for client in self._clients.values()}
        for client in list(self._clients.values()):
            self._leave(client)
        tally, self._tally = self._tally, []
        return held, tally

    def wait(self) -> None:
        """Answer clients until the server has something to say."""
        while True:
            ready = self._patience.look(self._poll) or self._poll.poll()
            self._patience.end()
            if any(descriptor == self._control for descriptor, _ in ready):
                return
            for descriptor, _ in ready:
                self._read(self._clients[descriptor])

    def _read(self, client: _Client) -> None:
        self._slot.begin(client.number)
        try:
            message = receive_message(client.connection)
        except BlockingIOError:  # the server was faster, as it may be when it wants us back
            self._slot.end(answered=False)
            return
        except (OSError, ChainruleError):
            message = None
        if message is None or not is_well_formed(message) or "number" not in message.header:
            self._drop(client, message)
            self._slot.end(answered=False)
            return
        header = message.header
        if header.get("release"):
            header["release"] = self._release(client, header["release"])
        if header.get("path") in self._endpoints and header.keys() <= _UNDERSTOOD:
            self._answer(client, message)
        else:
            self._pass_on(client, message)

    def _answer(self, client: _Client, message: Message) -> None:
        start, header = time.perf_counter(), message.header
        self._slot.begin(client.number, header["number"])
        if header.get("release"):
            self._tell({"released": header["release"], "client": client.number})
        stored = self._stored_reply(client, message)
        stored.header["number"] = header["number"]
        if stored.descriptors:
            client.lent.add(stored.header["segment"][0])
        try:
            send_message(client.connection, stored.header, (stored.inline,), stored.descriptors)
        except OSError:
            self._drop(client, None)
        self._slot.end(answered=True)
        self._count(message, stored, start)

    def _pass_on(self, client: _Client, message: Message) -> None:
        header = {"pass_on": client.number, "message": message.header}
        self._tell(header, (message.body,), message.descriptors)
        self._slot.end(answered=False)
        message.close()

    def _count(self, message: Message, stored: StoredReply, start: float) -> None:
        """Note what was answered, and tell the server now and then."""
        now = time.perf_counter()
        received = message.header["segment"][1] if message.descriptors else len(message.body)
        sent = stored.header["segment"][1] if stored.descriptors else len(stored.inline)
        endpoint = self._endpoints[message.header["path"]]
        self._tally.append((endpoint, stored.header["status"], now - start, received, sent))
        if now - self._told_at > _TELL_EVERY_S or len(self._tally) >= _MAX_TALLY:
            self._tell({"tally": self._tally})
            self._tally, self._told_at = [], now

    def _stored_reply(self, client: _Client, message: Message) -> StoredReply:
        segment = message.header.get("segment")
        try:
            call = self._call(message)
            if segment is None:
                return self._desk.answer(self._answerer, call, message, None)
            if segment[1] > self._max_body_bytes:
                raise LimitError(
                    f"The body is larger than {self._max_body_bytes} bytes.", code="body_too_large"
                )
        except ChainruleError as error:
            message.close()
            return self._desk.refuse(error)
        return self._desk.answer(self._answerer, call, message, f"c{client.number}.{segment[0]}")

    def _call(self, message: Message) -> Call:
        """The call of a message; what a client says of its bodies is the same again and again."""
        said = tuple(map(message.header.get, _SAID))
        if said != self._said:
            endpoint = self._endpoints[message.header["path"]]
            _, content_type, accept, run_id, traceparent = said
            call = Call(
                endpoint,
                b"",
                content_type=content_type or "",
                accept=accept,
                run_id=run_id,
                traceparent=traceparent,
            )
            self._said, self._said_call = said, call.check()
        return self._said_call.with_body(message.body)

    def _release(self, client: _Client, keys: list[str]) -> list[str]:
        """Take back segments that a client no longer reads; the keys that are not ours remain."""
        for key in client.lent.intersection(keys):
            client.lent.discard(key)
            self._desk.own.give_back(key)
            keys.remove(key)
        return keys

    def _drop(self, client: _Client, message: Message | None) -> None:
        """A client that left, or does not speak our language."""
        if message is not None:
            message.close()
        self._release(client, list(client.lent))
        self._desk.received.forget_all(f"c{client.number}.")
        self._leave(client)
        self._tell({"gone": client.number})

    def _leave(self, client: _Client) -> None:
        descriptor = client.connection.fileno()
        self._poll.unregister(descriptor)
        del self._clients[descriptor]
        client.connection.close()

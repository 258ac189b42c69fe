"""Bodies in the shared memory of clients on the same host.

Calls of such clients are HTTP requests like all others. What differs is where their bodies lie: descriptors
of shared memory come and go over a *channel*, a Unix socket beside the HTTP connection, and a header of the
request names them. The protocol is described in `chainrule._same_host`.

Everything that comes over a channel is checked: a message of another form ends the channel, and its
descriptors are closed. The server does not look into the memory. It passes the descriptors on to a worker
process; where there is none, a thread copies the body.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from chainrule._errors import ChainruleError, DecodeError, StorageError
from chainrule._same_host import (
    INLINE_BYTES,
    MappedSegments,
    Message,
    Segment,
    listen,
    receive_message,
    send_message,
    stored,
)
from chainrule.serve._calls import Reply, SegmentBody

MEMORY_HEADER = b"chainrule-memory"

# Each channel is a descriptor of the server; a client without one sends its bodies over HTTP.
_MAX_CHANNELS = 256
# Messages for requests that were refused before their memory was looked for; a client sends one at a time.
_MAX_UNREAD = 4
_ACCEPT_AGAIN_S = 1.0
_CREDENTIALS = struct.Struct("3i")
_NAMED = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,18}) ([0-9]{1,18})")


class UnknownMemoryError(ChainruleError):
    """The request names shared memory that this server has not received: HTTP 421."""

    default_code = "unknown_memory"
    http_status = 421


class ClientMemory:
    """What a client has announced for one request.

    The segments are the client's. It uses them again as soon as the reply names them in its header
    (`give`), so from then on nothing here may touch them. While a worker may still use them, which is so
    after an error of the server in place of the worker, the reply has no such header, and the client closes
    its descriptors; the memory goes when the worker closes its own.

    Attributes:
        body: of the request; `None` when it is in the request itself.
        room: for the answer, if the client has offered any.
    """

    def __init__(
        self, channel: _Channel, message: Message, nbytes: int, *, is_mapped_here: bool
    ) -> None:
        self._channel = channel
        segments = _opened(message, channel.mapped.get if is_mapped_here else Segment)
        self.room = segments.pop() if message.header["room"] else None
        segment = segments.pop() if message.header["body"] else None
        if (segment is None) != (nbytes == 0) or (segment is not None and nbytes > segment.size):
            raise DecodeError(
                f"A body of {nbytes} bytes was announced that does not lie in the segment sent for it.",
                code="bad_segment",
            )
        self.body = None if segment is None else SegmentBody(segment, nbytes)

    async def read(self) -> np.ndarray[Any, Any]:
        """The body in memory of this process.

        Raises:
            StorageError: there is no memory left.
        """
        assert self.body is not None, "the caller has looked"
        try:
            return await asyncio.to_thread(self.body.segment.copy, self.body.nbytes)
        except (MemoryError, OSError):
            raise StorageError("The server has no memory left for this body.") from None

    async def give(self, reply: Reply) -> Reply:
        """What to send over HTTP for a reply: its body goes through shared memory if it is large.

        The header tells the client that no worker uses its segments any more.
        """
        body = reply.stored
        if body is None and reply.nbytes > INLINE_BYTES:
            body = await asyncio.to_thread(self._store, reply.pieces)
        if body is None:
            form = b"inline"
        elif body.segment is self.room:
            form = b"room %d" % body.nbytes
        elif self._channel.send({"segment": body.nbytes}, body.segment):
            form = b"segment %d" % body.nbytes
        else:
            form = b"inline"
        is_inline = form == b"inline"
        return reply._replace(
            pieces=reply.pieces if is_inline else [],
            stored=reply.stored if is_inline else None,
            headers=(*reply.headers, (MEMORY_HEADER, form)),
        )

    def _store(self, pieces: list[Any]) -> SegmentBody | None:
        nbytes = sum(map(len, pieces))
        try:
            if self.room is not None and nbytes <= self.room.size:
                self.room.write(pieces)
                return SegmentBody(self.room, nbytes)
            return SegmentBody(stored(pieces), nbytes)
        except (OSError, ChainruleError):
            return None  # the answer goes over HTTP


class SameHostListener:
    """Accepts channels of clients of the same host and user."""

    def __init__(self) -> None:
        self._address = secrets.token_hex(16)
        self._secret = secrets.token_hex(32)
        self._channels: dict[str, _Channel] = {}
        self._loop = asyncio.get_running_loop()
        self._listener = listen(self._address)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._on_connect)

    @property
    def offer(self) -> dict[str, Any]:
        """What `GET /same-host` answers."""
        return {"address": self._address, "secret": self._secret}

    def claim(self, text: bytes, *, is_mapped_here: bool) -> ClientMemory:
        """What a client has announced for a request.

        Args:
            text: how the request names it, in its header `Chainrule-Memory`.
            is_mapped_here: no worker process will read it.

        Raises:
            UnknownMemoryError: it was announced to another server, or has been lost.
            DecodeError: it is not what it should be (`bad_segment`).
        """
        named = _NAMED.fullmatch(text)
        channel = None if named is None else self._channels.get(named[1].decode())
        message = None if named is None or channel is None else channel.take(int(named[2]))
        if named is None or channel is None or message is None:
            raise UnknownMemoryError(
                "This server has not received the shared memory that the request names. Send the request "
                "without Chainrule-Memory."
            )
        return ClientMemory(channel, message, int(named[3]), is_mapped_here=is_mapped_here)

    def _on_connect(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # No descriptor is left. The listener stays readable, and would be tried again at once.
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_ACCEPT_AGAIN_S, self._accept_again)
            return
        if len(self._channels) >= _MAX_CHANNELS or not _is_same_user(connection):
            connection.close()
            return
        name = secrets.token_hex(16)
        self._channels[name] = _Channel(connection, name, self._secret, self._channels.pop)

    def _accept_again(self) -> None:
        if self._listener.fileno() != -1:
            self._loop.add_reader(self._listener, self._on_connect)

    def renew(self) -> None:
        """Close what is open; only those who are given the new offer come back.

        Calls under way are answered: what their channel would have carried goes over HTTP.
        """
        self._secret = secrets.token_hex(32)
        self._close_channels()

    def close(self) -> None:
        """Accept no more, and close what is open."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._close_channels()

    def _close_channels(self) -> None:
        for channel in list(self._channels.values()):
            channel.close()


def _is_same_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    # The kernel fills in SO_PEERCRED when a client connects, so it cannot be forged. The socket is abstract:
    # no permissions of a file protect it. Root is let in, as it could read this memory in any case.
    return user in (0, os.geteuid())


class _Channel:
    """One client connection for descriptors: the secret first, then one message for each call.

    Attributes:
        mapped: memory of this client that is mapped in this process.
    """

    def __init__(
        self,
        connection: socket.socket,
        name: str,
        secret: str,
        on_close: Callable[[str], object],
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._name = name
        self._secret = secret.encode()
        self._on_close = on_close
        self._is_known = False
        self._announced: Message | None = None
        self.mapped = MappedSegments()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._read)

    def take(self, number: int) -> Message | None:
        """What was announced under a number, once."""
        # It was sent before the request, so it is here, though the event loop may not have read it yet.
        for _ in range(_MAX_UNREAD):
            message = self._announced
            if message is not None and message.header["number"] == number:
                self._announced = None
                return message
            self._read()
        return None

    def send(self, header: dict[str, Any], segment: Segment) -> bool:
        """Send a segment; whether that was possible."""
        try:
            send_message(self._connection, header, (), [segment.descriptor])
        except OSError:
            self.close()
            return False
        return True

    def _read(self) -> None:
        """Read the next message, if there is one."""
        if self._connection.fileno() == -1:
            return
        try:
            message = receive_message(self._connection)
        except BlockingIOError:
            return
        except (OSError, ChainruleError):
            message = None
        if message is None:
            self.close()
        elif self._is_known and _is_announcement(message):
            self._forget()
            self._announced = message
        else:
            message.close()
            self._introduce(message.header.get("secret"))

    def _introduce(self, secret: Any) -> None:
        self._is_known = (
            not self._is_known
            and type(secret) is str
            # The user alone is not enough: a container with another component may run as the same user. The
            # secret is given out over HTTP, behind the server's own check of tokens.
            and hmac.compare_digest(secret.encode(), self._secret)
        )
        try:
            if self._is_known:
                send_message(self._connection, {"channel": self._name})
                return
        except OSError:
            pass
        self.close()

    def _forget(self) -> None:
        if self._announced is not None:
            self._announced.close()
            self._announced = None

    def close(self) -> None:
        """Close the connection and what was sent over it."""
        if self._connection.fileno() == -1:
            return
        self._loop.remove_reader(self._connection)
        self._connection.close()
        self._forget()
        self._on_close(self._name)


def _is_announcement(message: Message) -> bool:
    header = message.header
    body, room, number = header.get("body"), header.get("room"), header.get("number")
    return (
        header.keys() == {"number", "body", "room"}
        and type(number) is int
        and type(body) is bool
        and type(room) is bool
        and len(message.descriptors) == body + room
        and not message.body
    )


def _opened(message: Message, open_one: Callable[[int], Segment]) -> list[Segment]:
    """The segments of a message; if one is not what it should be, none is kept."""
    descriptors, segments = list(message.descriptors), []
    try:
        while descriptors:
            segments.append(open_one(descriptors.pop(0)))
    except ChainruleError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return segments

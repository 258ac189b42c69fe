"""Calls over a Unix socket, arrays in shared memory: the client's end of `chainrule.runtime._samehost`."""

from __future__ import annotations

import secrets
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

from chainrule._errors import DecodeError
from chainrule.client._answers import Answer
from chainrule.client._connections import LostConnectionError
from chainrule.runtime._codec import Frames
from chainrule.runtime._samehost import (
    INLINE_BYTES,
    Message,
    SegmentCache,
    SegmentPool,
    receive_message,
    send_message,
)

__all__ = ["PacketConnection"]


class PacketConnection:
    """One connection, one call at a time.

    Memory of a request is used again for the next one. An answer is copied to memory of its own, and its
    segment goes back to the other side with the next call.

    Args:
        connection: a connected socket of packets.
        place: the other side, for messages.
    """

    def __init__(self, connection: socket.socket, place: str) -> None:
        self._connection = connection
        self._place = place
        self._own = SegmentPool(f"c{secrets.token_hex(8)}")
        self._received = SegmentCache()
        self._release: deque[str] = deque()
        self._number = 0

    def exchange(self, header: Mapping[str, Any], body: Frames) -> Answer:
        """Send a call and receive its answer.

        Raises:
            LostConnectionError: the other side is gone (`connection_lost`) or silent (`timeout`).
        """
        key = self._send(header, body)
        message = self._receive()
        if key is not None:
            take_back = self._own.forget if message.header.get("held") else self._own.give_back
            take_back(key)
        return Answer(
            int(message.header["status"]),
            str(message.header.get("content_type", "")),
            self._body(message),
            message.header.get("retry_after"),
        )

    def break_off(self) -> None:
        """Make a call that is under way in another thread fail; the connection is lost."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the connection. Arrays that were received stay valid."""
        self._connection.close()

    def _send(self, header: Mapping[str, Any], body: Frames) -> str | None:
        """Send a call; returns the key of the segment that holds its body, if one does."""
        self._number += 1
        header = {**header, "number": self._number}
        if self._release:
            header["release"] = [self._release.popleft() for _ in range(len(self._release))]
        try:
            if body.nbytes <= INLINE_BYTES:
                send_message(self._connection, header, body.pieces)
                return None
            segment = self._own.take(body.nbytes)
            body.write_into(segment.array(body.nbytes))
            header["segment"] = [segment.key, body.nbytes]
            send_message(self._connection, header, (), [segment.descriptor])
            return segment.key
        except OSError as error:
            raise self._lost(error, was_sent=False) from error

    def _receive(self) -> Message:
        while True:
            try:
                message = receive_message(self._connection)
            except (OSError, DecodeError) as error:
                raise self._lost(error, was_sent=True) from error
            if message is None:
                raise self._lost(ConnectionError("closed"), was_sent=True)
            # A worker that dies right after it has answered leaves a second answer behind: that it died.
            if message.header.get("number", self._number) == self._number:
                return message
            message.close()

    def _body(self, message: Message) -> Any:
        if "segment" not in message.header:
            return message.body
        key, nbytes = message.header["segment"]
        segment = self._received.get(key, message.descriptors[0] if message.descriptors else None)
        if segment is None:
            raise self._lost(ConnectionError("unknown memory was named"), was_sent=True)
        # Copied before the connection is used again, or lost: the other side then writes to the segment.
        body = segment.array(nbytes).copy()
        self._release.append(key)
        return body

    def _lost(self, error: Exception, *, was_sent: bool) -> LostConnectionError:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return LostConnectionError(
                f"No answer from {self._place} in time. Pass a larger timeout.",
                was_sent=was_sent,
                code="timeout",
            )
        return LostConnectionError(
            f"The connection to {self._place} broke ({error}).",
            was_sent=was_sent,
            code="connection_lost",
        )

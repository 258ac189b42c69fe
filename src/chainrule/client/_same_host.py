"""Large bodies through shared memory, where the server is on this host.

Calls stay HTTP requests; the descriptors of their memory travel over a *channel* beside them. The protocol is
described in `chainrule._same_host`. Where the server offers no memory, cannot be reached over the
channel, or memory or descriptors run short, the same request goes over HTTP with its body in it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from chainrule._errors import DecodeError, TransportError
from chainrule._same_host import (
    CallMemory,
    SegmentPool,
    connect,
    receive_message,
    send_message,
)
from chainrule.client._bodies import Answer
from chainrule.client._connections import IdleConnections, LostConnectionError, Request

# Bodies up to this size are as fast over HTTP.
_LARGE_BYTES = 1 << 17
# After this many failures in a row shared memory is not tried any more.
_MAX_FAILURES = 3


class _Offer(NamedTuple):
    """What a server answers to `GET /same-host`."""

    address: str
    secret: str


class SharedMemory:
    """Shared memory with one server. Safe between threads.

    Args:
        get_offer: asks the server for its offer over HTTP.
    """

    def __init__(self, get_offer: Callable[[], Answer]) -> None:
        self._get_offer = get_offer
        self._offer: _Offer | None = None
        # Held while the server is asked for its offer: the other threads wait for the one answer. Lock order:
        # this one, then those of the connection pool; asking is a GET, which does not come back here.
        self._agreement = threading.Lock()
        self._failures = 0
        self._answers_are_large = False
        self._segments = SegmentPool()
        self._idle: IdleConnections[_Channel] = IdleConnections()

    def exchange(self, request: Request, send: Callable[[Request], Answer]) -> Answer:
        """Have a request answered, with its body and the answer's in shared memory if they are large.

        Args:
            request: with its body.
            send: sends a request over HTTP and receives the answer.

        Raises:
            LostConnectionError: the answer was lost on its way; and what `send` raises.
        """
        if not self._answers_are_large and request.nbytes <= _LARGE_BYTES:
            answer = send(request)
            self._answers_are_large = len(answer.body) > _LARGE_BYTES
            return answer
        announced = self._announce(request)
        if announced is None:
            return send(request)
        channel, memory = announced
        try:
            answer = send(channel.with_memory(request, memory))
            if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
                # 421 comes before anything runs: the request reached a server without this channel (a
                # restart, or another server behind the same name). So it may be sent again, also by a caller
                # whose calls may not run twice.
                return self._send_again(request, send, channel, memory)
            answer = self._received(answer, channel, memory, request.max_bytes)
        except BaseException:
            # Whether a worker still uses the memory, or what comes over the channel next, is not known.
            channel.close()
            memory.close()
            raise
        self._idle.keep(channel)
        return answer

    @property
    def is_in_use(self) -> bool:
        """Whether it is not known yet that the server is elsewhere or offers none."""
        return self._failures < _MAX_FAILURES

    def close(self) -> None:
        """Close the channels that no call uses."""
        self._idle.close()

    def _announce(self, request: Request) -> tuple[_Channel, CallMemory] | None:
        """Put a body into shared memory and send the descriptors; `None` where that is not possible."""
        channel = self._take()
        if channel is None:
            return None
        try:
            memory = CallMemory(self._segments, request.pieces, wants_room=self._answers_are_large)
        except OSError:  # no memory or no descriptors left
            channel.close()
            return None
        try:
            channel.announce(memory)
        except OSError:  # the server has closed it, most likely because it was restarted
            channel.close()
            memory.close()
            return None
        return channel, memory

    def _send_again(
        self,
        request: Request,
        send: Callable[[Request], Answer],
        channel: _Channel,
        memory: CallMemory,
    ) -> Answer:
        """Send a request over HTTP alone: it has reached another server than the memory has."""
        self._failures += 1
        channel.close()
        memory.close()
        return send(request)

    def _received(
        self, answer: Answer, channel: _Channel, memory: CallMemory, max_bytes: int
    ) -> Answer:
        """An answer with its body, in memory of this process."""
        form, _, size = (answer.memory or "").partition(" ")
        # The order is that of the protocol: without the header nothing is known of the worker, so the
        # segments are closed and not given back. The channel itself is in order, and is kept.
        if not form:  # from the server in place of the worker, which may still use the memory
            memory.close()
            return answer
        self._failures = 0
        if form == "inline":
            self._answers_are_large = len(answer.body) > _LARGE_BYTES
        else:
            self._answers_are_large = True
            try:
                nbytes = int(size)
                # Checked before the memory is mapped or copied; an answer over HTTP is checked at the same
                # bound.
                if nbytes > max_bytes:
                    raise _too_large(nbytes, max_bytes)
                descriptor = channel.receive() if form == "segment" else None
                answer = answer._replace(body=memory.answer(nbytes, descriptor))
            except TransportError:
                raise
            except (OSError, ValueError, DecodeError, MemoryError) as error:
                raise LostConnectionError(
                    f"The answer was lost in shared memory ({error}).",
                    was_sent=True,
                    code="connection_lost",
                ) from error
        memory.give_back()
        return answer

    def _take(self) -> _Channel | None:
        channel = self._idle.take()
        if channel is not None:
            return channel
        with self._agreement:
            return None if self._failures >= _MAX_FAILURES else self._connect()

    def _connect(self) -> _Channel | None:
        if self._offer is not None:
            with contextlib.suppress(OSError):
                return _Channel(self._offer)
        # There is none yet, or the server was restarted, so that its address is another one.
        try:
            self._offer = _read_offer(self._get_offer())
            if self._offer is not None:
                return _Channel(self._offer)
            self._failures = _MAX_FAILURES
        except TransportError:  # an OSError too; the request will fail in the same way, and say why
            pass
        except OSError:
            self._failures += 1
        return None


def _too_large(nbytes: int, max_bytes: int) -> TransportError:
    return TransportError(
        f"The answer has {nbytes} bytes, and at most {max_bytes} are read. Pass a larger max_answer_bytes if "
        "you trust the server.",
        code="answer_too_large",
        details={"limit": max_bytes},
    )


def _read_offer(answer: Answer) -> _Offer | None:
    """The offer of a server; `None` when it makes none."""
    if answer.status != HTTPStatus.OK:
        return None
    try:
        content = orjson.loads(bytes(answer.body))
        return _Offer(str(content["address"]), str(content["secret"]))
    except (ValueError, KeyError, TypeError):
        return None


class _Channel:
    """One connection for descriptors, for one call at a time.

    Raises:
        OSError: the server is not on this host, or refuses the secret.
    """

    def __init__(self, offer: _Offer) -> None:
        self._connection = connect(offer.address)
        self._number = 0
        try:
            send_message(self._connection, {"secret": offer.secret})
            message = receive_message(self._connection)
            if message is None or "channel" not in message.header:
                raise ConnectionRefusedError("the server refuses the secret")
            message.close()
            self._name = str(message.header["channel"])
        except DecodeError as error:
            self.close()
            raise ConnectionRefusedError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def announce(self, memory: CallMemory) -> None:
        """Send the descriptors of a call.

        Raises:
            OSError: the server has closed the channel.
        """
        self._number += 1
        header: dict[str, Any] = {
            "number": self._number,
            "body": memory.body is not None,
            "room": memory.room is not None,
        }
        send_message(self._connection, header, (), memory.descriptors)

    def with_memory(self, request: Request, memory: CallMemory) -> Request:
        """The request for the call that was announced last."""
        named = f"{self._name} {self._number} {memory.body_bytes}"
        pieces = request.pieces if memory.body is None else ()
        return replace(
            request, headers={**request.headers, "Chainrule-Memory": named}, pieces=pieces
        )

    def receive(self) -> int:
        """The descriptor of the memory with the answer.

        Raises:
            OSError, DecodeError: no such memory, or not of this form.
        """
        message = receive_message(self._connection)
        if message is None or len(message.descriptors) != 1:
            if message is not None:
                message.close()
            raise ConnectionError("no memory came")
        return message.descriptors[0]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

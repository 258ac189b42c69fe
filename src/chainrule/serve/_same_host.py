"""Clients of the same host: calls over a Unix socket, bodies in shared memory.

The protocol is described in `chainrule.runtime._samehost`. The server passes segments between client and
worker without looking at them; only in thread mode does it map them itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import secrets
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chainrule._errors import CapabilityError, ChainruleError, DecodeError, LimitError
from chainrule.runtime._copying import write_pieces
from chainrule.runtime._samehost import (
    INLINE_BYTES,
    Message,
    Segment,
    SegmentPool,
    is_well_formed,
    listen,
    receive_message,
    send_message,
)
from chainrule.serve._calls import Call, Reply, StoredBody
from chainrule.serve._problems import problem_reply
from chainrule.serve._process import SegmentBody
from chainrule.serve._service import Service

__all__ = ["SameHostListener"]

Target = tuple[Service, str]

_MAX_SEGMENTS = 64
_MAX_CONNECTIONS = 256
_CREDENTIALS = struct.Struct("3i")


class SameHostListener:
    """Accepts clients of the same host and user.

    Args:
        targets: path → component and endpoint, as over HTTP.
        debug: tracebacks to callers.
    """

    def __init__(self, targets: Mapping[str, Target], *, debug: bool) -> None:
        self._targets = targets
        self._debug = debug
        self._address = secrets.token_hex(16)
        self._secret = secrets.token_hex(32)
        self._connections: set[_Connection] = set()
        self._loop = asyncio.get_running_loop()
        self._listener = listen(self._address)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._on_connect)

    @property
    def offer(self) -> dict[str, Any]:
        """What `GET /same-host` answers."""
        return {"address": self._address, "secret": self._secret, "inline_bytes": INLINE_BYTES}

    def _on_connect(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= _MAX_CONNECTIONS or not _is_same_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._connections.add(
            _Connection(
                connection, self._targets, self._secret, self._debug, self._connections.discard
            )
        )

    def close(self) -> None:
        """Accept no more, and close what is open."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.close()


def _is_same_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return user in (0, os.geteuid())


class _Connection:
    """One client connection: hello, then one call at a time."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        connection: socket.socket,
        targets: Mapping[str, Target],
        secret: str,
        debug: bool,
        on_close: Callable[[_Connection], None],
    ) -> None:
        self.number = next(self._numbers)
        self._connection = connection
        self._targets = targets
        self._secret = secret
        self._debug = debug
        self._on_close = on_close
        self._prefix = f"c{self.number}"
        self._is_known = False
        self._segments: dict[str, Segment] = {}
        self._own = SegmentPool(self._prefix)
        self._lent: dict[str, Callable[[], object]] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection, self._on_readable)

    def _on_readable(self) -> None:
        try:
            message = receive_message(self._connection)
        except BlockingIOError:
            return
        except (OSError, ChainruleError):
            message = None
        if message is None:
            self.close()
        else:
            self._begin(message)

    def _begin(self, message: Message) -> None:
        """Begin to answer a message."""
        if self._task is not None or not is_well_formed(message):
            message.close()
            self.close()
        elif not self._is_known:
            self._introduce(message)
        else:
            self._task = self._loop.create_task(self._handle(message))

    def _introduce(self, message: Message) -> None:
        self._is_known = hmac.compare_digest(str(message.header.get("secret")), self._secret)
        self._send({"status": 200 if self._is_known else 401})
        if not self._is_known:
            self.close()

    async def _handle(self, message: Message) -> None:
        for key in message.header.get("release", ()):
            self._give_back(key)
        reply, is_held = await self._answer(message)
        held = is_held()
        if held:
            self._forget(message.header["segment"][0])
        self._task = None
        self._reply(reply, held, message.header.get("number"))

    async def _answer(self, message: Message) -> tuple[Reply, Callable[[], bool]]:
        """The reply, and a way to see whether the component still uses the request's memory."""
        is_held: Callable[[], bool] = _never
        try:
            service, endpoint = self._target(message)
            header = message.header
            body, is_held = self._body(message, service)
            call = Call(
                endpoint,
                body,
                content_type=header.get("content_type") or "",
                accept=header.get("accept"),
                run_id=header.get("run_id"),
                traceparent=header.get("traceparent"),
            ).check()
            return self._store(await service.call(call)), is_held
        except ChainruleError as error:
            return problem_reply(error, debug=self._debug), is_held

    def _target(self, message: Message) -> Target:
        target = self._targets.get(str(message.header.get("path")))
        if target is None:
            raise CapabilityError("There is nothing at this path.", code="not_found")
        return target

    def _body(self, message: Message, service: Service) -> tuple[Any, Callable[[], bool]]:
        if message.header.get("segment") is None:
            return message.body, _never
        key, nbytes = message.header["segment"]
        segment = self._segment(key, message.descriptors)
        if nbytes > segment.size:
            raise DecodeError("The body is larger than its segment.", code="bad_segment")
        if nbytes > service.facts.max_body_bytes:
            raise LimitError(
                f"The body is larger than {service.facts.max_body_bytes} bytes.",
                code="body_too_large",
            )
        if service.pool.uses_segments:
            outcome = _Outcome()
            return SegmentBody(segment, nbytes, outcome.set), outcome.is_held
        return segment.array(nbytes).copy(), _never

    def _segment(self, key: str, descriptors: Sequence[int]) -> Segment:
        if descriptors and key not in self._segments:
            if len(self._segments) >= _MAX_SEGMENTS:
                self._forget(next(iter(self._segments)))
            self._segments[key] = Segment.open(f"{self._prefix}.{key}", descriptors[0])
        elif descriptors:
            os.close(descriptors[0])
        if key not in self._segments:
            raise DecodeError(
                "The segment is not known here; send its descriptor.", code="bad_segment"
            )
        return self._segments[key]

    def _store(self, reply: Reply) -> Reply:
        """A reply whose body is small or lies in a segment."""
        if reply.stored is not None:
            return reply
        nbytes = sum(map(len, reply.pieces))
        if nbytes <= INLINE_BYTES:
            body = [b"".join(reply.pieces)]
            return Reply(reply.status, reply.content_type, body, reply.retry_after_s)
        segment = self._own.take(nbytes)
        write_pieces(segment.array(nbytes), reply.pieces)
        key = segment.key
        stored = StoredBody(key, segment, nbytes, lambda: self._own.give_back(key))
        return Reply(reply.status, reply.content_type, [], stored=stored)

    def _reply(self, reply: Reply, held: bool, number: int | None) -> None:
        header = {"status": reply.status, "content_type": reply.content_type, "held": held}
        if number is not None:
            header["number"] = number
        if reply.retry_after_s is not None:
            header["retry_after"] = reply.retry_after_s
        stored = reply.stored
        if stored is None:
            self._send(header, reply.pieces)
            return
        self._lent[stored.key] = stored.release
        header["segment"] = [stored.key, stored.nbytes]
        self._send(header, (), [stored.segment.descriptor])

    def _send(self, header: dict[str, Any], body: Any = (), descriptors: Any = ()) -> None:
        try:
            send_message(self._connection, header, body, descriptors)
        except OSError:
            self.close()

    def _give_back(self, key: str) -> None:
        """The client no longer reads the body of a reply."""
        release = self._lent.pop(key, None)
        if release is not None:
            release()

    def _forget(self, key: str) -> None:
        segment = self._segments.pop(key, None)
        if segment is not None:
            for service, _ in self._targets.values():
                service.pool.forget_segment(segment.key)

    def close(self) -> None:
        """Close, cancel the call under way, give back all memory."""
        if self._connection.fileno() == -1:
            return
        self._loop.remove_reader(self._connection)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if self._task is not None:
            self._task.cancel()
        for key in list(self._lent):
            self._give_back(key)
        for key in list(self._segments):
            self._forget(key)
        self._on_close(self)


class _Outcome:
    """Whether a worker was done with a segment when it answered."""

    def __init__(self) -> None:
        self._is_reusable = True

    def set(self, is_reusable: bool) -> None:
        self._is_reusable = is_reusable

    def is_held(self) -> bool:
        return not self._is_reusable


def _never() -> bool:
    return False

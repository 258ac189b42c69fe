"""The bytes of a request, read within limits and into shared memory where a worker will need them there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from chainrule._errors import ChainruleError, DecodeError, LimitError, StorageError
from chainrule._samehost import INLINE_BYTES, Segment, stored
from chainrule.serve._calls import SegmentBody, unavailable

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
NextChunk = Callable[[], Awaitable[bytes | None]]
Grow = Callable[[int], None]
"""Is told of bytes that have come."""


class Disconnected(Exception):  # noqa: N818 - an event, not an error
    """The caller went away before its request was complete."""


# Bytes per second of a body, beyond what comes within one pause; modems were faster.
_MIN_PACE = 1000


class SlowCallerError(ChainruleError):
    """The next part of a request did not come in time: HTTP 408."""

    default_code = "request_timeout"
    http_status = 408
    exit_code = 2


class Intake:
    """How many bytes of bodies the server holds, and may hold, at a time.

    Args:
        max_bytes: of all bodies together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0

    @contextmanager
    def room_for(self, nbytes: int | None) -> Iterator[Grow]:
        """Room for one body while it is read and used.

        Args:
            nbytes: the declared length. Without one what is yielded is told how much has come.

        Raises:
            CallError: there is none now (`memory_busy`); what is yielded raises it too.
        """
        taken = 0

        def grow(more: int) -> None:
            nonlocal taken
            of_others = self._held - taken
            if of_others and self._held + more > self._max_bytes:
                raise unavailable("The server holds as much data as it may.", "memory_busy")
            self._held += more
            taken += more

        try:
            grow(nbytes or 0)
            yield grow if nbytes is None else _keep
        finally:
            self._held -= taken


def _keep(nbytes: int) -> None:
    """Room was made before."""


def declared_length(text: str | None, max_bytes: int) -> int | None:
    """The length that a `Content-Length` header declares, or `None` without one.

    Raises:
        DecodeError: it is not a number.
        LimitError: it is more than `max_bytes`.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise DecodeError("Content-Length is not a number.", code="bad_content_length")
    if int(text) > max_bytes:
        raise _too_large(max_bytes)
    return int(text)


async def read_body(
    receive: Receive,
    nbytes: int | None,
    *,
    max_bytes: int,
    timeout_s: float,
    in_segment: bool = False,
    grow: Grow = _keep,
) -> Any:
    """A request's body: bytes, or a `SegmentBody` when it is large and a worker process will read it.

    Args:
        receive: of the ASGI connection.
        nbytes: the declared length, if there is one.
        max_bytes: a longer body is refused while it is read.
        timeout_s: how long the caller may pause; the whole may take so long, and as long as its bytes need at
            the slowest pace that is allowed.
        in_segment: a large body goes into shared memory.
        grow: makes room for what has come.

    Raises:
        LimitError: too large (`body_too_large`).
        SlowCallerError: the caller paused too long, or is too slow.
        Disconnected: the caller went away.
    """
    reader = _Reader(receive, timeout_s, max_bytes, grow)
    if in_segment and nbytes is not None and nbytes > INLINE_BYTES:
        return await _into_segment(reader.next_chunk, nbytes)
    body = await reader.read_all()
    return place_body(body) if in_segment else body


class _Reader:
    """The chunks of one body, within time and size."""

    def __init__(self, receive: Receive, timeout_s: float, max_bytes: int, grow: Grow) -> None:
        self._receive = receive
        self._grow = grow
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._total = 0
        self._is_complete = False

    async def read_all(self) -> bytes:
        chunks = []
        while (chunk := await self.next_chunk()) is not None:
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def next_chunk(self) -> bytes | None:
        """The next chunk, or `None` after the last."""
        if self._is_complete:
            return None
        # One byte now and then would hold a connection, and the memory that the body needs, for days.
        next_by = self._loop.time() + self._timeout_s
        all_by = self._began + self._timeout_s + self._total / _MIN_PACE
        try:
            async with asyncio.timeout_at(min(next_by, all_by)):
                message = await self._receive()
        except TimeoutError:
            raise self._too_slow(is_paused=not self._total or next_by <= all_by) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        self._total += len(chunk)
        if self._total > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._grow(len(chunk))
        self._is_complete = not message.get("more_body", False)
        return chunk

    def _too_slow(self, *, is_paused: bool) -> SlowCallerError:
        if is_paused:
            why = f"The next part of the body did not come within {self._timeout_s:g} s."
        else:
            seconds = self._loop.time() - self._began
            why = f"The body comes too slowly: {self._total} bytes in {seconds:.0f} s."
        return SlowCallerError(why)


def place_body(content: bytes) -> bytes | SegmentBody:
    """Bytes that are here already, brought to where a worker process can read them; see `read_body`."""
    if len(content) <= INLINE_BYTES:
        return content
    try:
        return SegmentBody(stored([content]), len(content))
    except OSError:
        raise _no_memory() from None


async def _into_segment(next_chunk: NextChunk, nbytes: int) -> SegmentBody:
    try:
        segment, position = Segment.create(nbytes), 0
        while (chunk := await next_chunk()) is not None:
            position = segment.write_at(position, chunk)
    except OSError:
        raise _no_memory() from None
    return SegmentBody(segment, nbytes)


def _no_memory() -> StorageError:
    return StorageError("The server has no memory left for this body.")


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(
        f"The body is larger than the limit of {max_bytes} bytes. The operator of the server can raise "
        "the limit with --max-body-bytes.",
        code="body_too_large",
        details={"limit": max_bytes},
    )

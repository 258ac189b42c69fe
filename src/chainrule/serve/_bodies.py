"""The bytes of a request, read within limits and into shared memory where a worker will need them there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from chainrule._errors import ChainruleError, DecodeError, LimitError, StorageError
from chainrule.runtime._samehost import INLINE_BYTES, SegmentPool
from chainrule.serve._process import SegmentBody

__all__ = ["Disconnected", "SlowCallerError", "read_body"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnected(Exception):  # noqa: N818 - an event, not an error
    """The caller went away before its request was complete."""


class SlowCallerError(ChainruleError):
    """The next part of a request did not come in time: HTTP 408."""

    default_code = "request_timeout"
    http_status = 408
    exit_code = 2


async def read_body(
    receive: Receive,
    declared: str | None,
    *,
    max_bytes: int,
    timeout_s: float,
    segments: SegmentPool | None,
    forget: Callable[[str], None],
) -> Any:
    """A request's body: bytes, or a `SegmentBody` when it is large and `segments` are used.

    Args:
        receive: of the ASGI connection.
        declared: the `Content-Length` header.
        max_bytes: refused before it is read when declared larger, else while it is read.
        timeout_s: how long the caller may pause.
        segments: memory that workers can map; `None` to gather bytes.
        forget: called with the key of a segment that will not be used again.

    Raises:
        LimitError: too large (`body_too_large`).
        SlowCallerError: the caller paused too long.
        Disconnected: the caller went away.
    """
    nbytes = _declared_length(declared, max_bytes)
    chunks = _chunks(receive, timeout_s, max_bytes)
    if segments is None or (nbytes is not None and nbytes <= INLINE_BYTES):
        return b"".join([chunk async for chunk in chunks])
    if nbytes is None:
        content = b"".join([chunk async for chunk in chunks])
        if len(content) <= INLINE_BYTES:
            return content
        return await _into_segment(_once(content), len(content), segments, forget)
    return await _into_segment(chunks, nbytes, segments, forget)


def _declared_length(declared: str | None, max_bytes: int) -> int | None:
    if declared is None:
        return None
    if not declared.isascii() or not declared.isdigit() or len(declared) > 18:
        raise DecodeError("Content-Length is not a number.", code="bad_content_length")
    if int(declared) > max_bytes:
        raise _too_large(max_bytes)
    return int(declared)


async def _chunks(receive: Receive, timeout_s: float, max_bytes: int) -> Any:
    total = 0
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                message = await receive()
        except TimeoutError:
            raise SlowCallerError(
                f"The next part of the body did not come within {timeout_s:g} s."
            ) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > max_bytes:
            raise _too_large(max_bytes)
        yield chunk
        if not message.get("more_body", False):
            return


async def _once(content: bytes) -> Any:
    yield content


async def _into_segment(
    chunks: Any, nbytes: int, segments: SegmentPool, forget: Callable[[str], None]
) -> SegmentBody:
    try:
        segment = segments.take(nbytes)
    except OSError:
        raise StorageError("The server has no memory left for this body.") from None

    def done(reusable: bool) -> None:
        if not reusable:
            segments.forget(segment.key)
            return
        dropped = segments.give_back(segment.key)
        if dropped is not None:
            forget(dropped)

    target, position = segment.array(nbytes).data, 0
    try:
        async for chunk in chunks:
            target[position : position + len(chunk)] = chunk
            position += len(chunk)
    except BaseException:
        done(True)
        raise
    return SegmentBody(segment, nbytes, done)


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(
        f"The body is larger than the limit of {max_bytes} bytes.",
        code="body_too_large",
        details={"limit": max_bytes},
    )

"""What passes between the layers of the server: a call as bytes, a reply as bytes."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from chainrule._errors import StorageError, TransportError
from chainrule._same_host import INLINE_BYTES, Segment, SegmentPool
from chainrule.serve._logs import Output


class Watcher(Protocol):
    """Follows one call.

    Attributes:
        timeout_s: how long it may run; `None` for no limit.
    """

    timeout_s: float | None

    @property
    def output(self) -> Output:
        """Takes what the component prints."""

    async def on_start(self) -> None:
        """A worker has been found and is about to begin."""

    def on_progress(self, fraction: float, message: str) -> None:
        """The component said how far along it is."""


@dataclass(frozen=True)
class SegmentBody:
    """A body in shared memory; see `chainrule._same_host` for who may use it when.

    Attributes:
        segment: the memory.
        nbytes: how much of it is the body.
        pool: where the memory goes after its use; `None` for memory that is not the server's.
    """

    segment: Segment
    nbytes: int
    pool: SegmentPool | None = None

    @classmethod
    def create(cls, nbytes: int, pool: SegmentPool) -> SegmentBody:
        """Room for a body that is about to be written as a whole.

        New memory is not reserved, as `SegmentPool.take` does: a caller who declares a long body and sends
        nothing would let the event loop wait while the system clears it.

        Raises:
            OSError: the machine has no memory or no descriptor left.
        """
        return cls(pool.find(nbytes) or Segment.create(nbytes), nbytes, pool)

    def release(self) -> None:
        """The worker has replied, so that no other process uses the memory: it is used again."""
        if self.pool is not None:
            self.pool.give_back(self.segment)

    def open(self) -> memoryview:
        """The bytes, once; the memory is released when the last view of them is gone.

        A transport keeps views of what its caller has not taken yet, long after `send` has returned. So it
        is not the code that sends which knows when the memory may be written to again, but the array below,
        to which all views refer.
        """
        array = np.frombuffer(self.segment.view(self.nbytes), np.uint8)
        # At the end of the process there is no pool to give memory back to, and the segment is gone with its
        # descriptor; a finalizer that ran then would only touch objects that are half dismantled.
        weakref.finalize(array, self.release).atexit = False
        return array.data


class Call(NamedTuple):
    """One request to one endpoint of one component, undecoded.

    Attributes:
        endpoint: name of the endpoint.
        body: the bytes, or a `SegmentBody`.
        content_type, content_encoding, accept: the headers of these names.
        run_id: what the caller wants its files to be known by.
        traceparent: the caller's place in its trace.
        forward_pass: `keep` in a call of `apply`, or the token of a kept pass in one of a derivative; see
            `_answering.KeptPasses`.
        exports_done: names of earlier answers on a GPU that their caller has read; see `_devices`.
        watcher: is told of its progress and output, where the call is a job.
        merged: whether the body holds several calls, see `_merging`.
        room: shared memory that the caller offers for the answer.
    """

    endpoint: str
    body: Any
    content_type: str = "application/json"
    content_encoding: str = ""
    accept: str | None = None
    run_id: str | None = None
    traceparent: str | None = None
    forward_pass: str | None = None
    exports_done: str = ""
    watcher: Watcher | None = None
    merged: bool = False
    room: Segment | None = None

    @property
    def nbytes(self) -> int:
        """Size of the body."""
        return len(self.body) if isinstance(self.body, bytes) else self.body.nbytes

    def timeout_s(self, of_others: float | None) -> float | None:
        """How long this call may run: what its watcher says, or as long as all others."""
        return of_others if self.watcher is None else self.watcher.timeout_s

    @property
    def told(self) -> dict[str, Any]:
        """What a worker in another process is told of it, beside its body."""
        return {
            "endpoint": self.endpoint,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "accept": self.accept,
            "run_id": self.run_id,
            "traceparent": self.traceparent,
            "merged": self.merged,
            "forward_pass": self.forward_pass,
            "exports_done": self.exports_done,
        }


class Reply(NamedTuple):
    """An encoded answer.

    Attributes:
        status: HTTP status.
        content_type: media type of the body.
        pieces: buffers which, one after the other, are the body.
        retry_after_s: when a caller that was turned away may come back.
        stored: where the body lies when it is not in `pieces`: in the caller's room, or in new memory.
        headers: more of them, for HTTP.
        reuse: how often something kept from earlier calls was there (`results_hit`, `residuals_miss`, …).
        forward_pass: the token of the forward pass that was kept.
        device_bytes: memory of a GPU that the worker has; `None` for a component of the host.
    """

    status: int
    content_type: str
    pieces: list[Any]
    retry_after_s: int | None = None
    stored: SegmentBody | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    reuse: Mapping[str, int] = MappingProxyType({})
    forward_pass: str | None = None
    device_bytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the body."""
        return sum(map(len, self.pieces)) if self.stored is None else self.stored.nbytes

    def open(self) -> list[Any]:
        """The pieces of the body, wherever it lies."""
        if self.stored is None:
            return self.pieces
        return [self.stored.open()]


@dataclass(frozen=True)
class Facts:
    """What a server says about a component without asking it again."""

    name: str
    version: str
    description: str
    endpoints: list[str]
    openapi: dict[str, Any] = field(repr=False)
    max_body_bytes: int
    content_hash: str
    batching: str | None = None
    merge_up_to: int = 0


def url_name(component: str) -> str:
    """The name of a component in URLs."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", component).strip("-") or "component"


class CallError(TransportError):
    """A call that got no answer from the component: its worker died, hung, or was never free.

    Attributes:
        http_status: 502 crashed, 503 no room or stopping, 504 too slow.
        retry_after_s: when to try again; `None` when that would not help.
    """

    def __init__(
        self, message: str, *, status: int, retry_after_s: int | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.http_status = status  # type: ignore[misc]
        self.retry_after_s = retry_after_s

    @classmethod
    def unavailable(cls, message: str, code: str, retry_after_s: int = 1) -> CallError:
        """A 503: nothing was run, and the caller may try again later."""
        return cls(message, code=code, status=503, retry_after_s=retry_after_s)

    @classmethod
    def stopping(cls) -> CallError:
        """What callers get while the server stops."""
        return cls.unavailable("The server is stopping.", "shutting_down", 5)


class Cancelled(BaseException):
    """Raised on the worker's thread when the answer is not wanted any more."""


def too_slow(what: str, timeout_s: float, *, was_stopped: bool) -> CallError:
    """A 504: the author's code did not return in time."""
    if was_stopped:
        outcome = "It was stopped; the operator can allow more with --timeout."
    else:
        outcome = (
            "It still runs, because author code in a thread cannot be stopped; serve with --workers 1 to "
            "change that."
        )
    message = f"{what} did not return within {timeout_s:g} s. {outcome}"
    return CallError(message, code="call_timeout", status=504)


def not_loaded(timeout_s: float) -> CallError:
    """A component that took too long to load."""
    return CallError(
        f"The component was not loaded within {timeout_s:g} s; --startup-timeout allows more.",
        code="startup_timeout",
        status=504,
    )


def place_body(content: bytes, pool: SegmentPool) -> bytes | SegmentBody:
    """Bytes that are here already, brought to where a worker process can read them; see `read_body`."""
    if len(content) <= INLINE_BYTES:
        return content
    try:
        body = SegmentBody.create(len(content), pool)
        body.segment.write_at(0, content)
    except OSError:
        raise no_memory() from None
    return body


def no_memory() -> StorageError:
    """The error of a body for which the server has no memory."""
    return StorageError("The server has no memory left for this body.")

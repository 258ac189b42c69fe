"""One compute endpoint as an ASGI application: `POST /<endpoint>` of one component.

The endpoint checks what can be checked without the body (size, headers, query), reads the body within limits
of time and memory, hands the undecoded call to the component's pool, and sends the reply. It is the same for
every number of workers, every encoding and every transport. A large body lies in shared memory when a worker
process will read it; that is a property of the body (`SegmentBody`), not another way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from chainrule._errors import ChainruleError, DecodeError, InputError, LimitError, StorageError
from chainrule._same_host import INLINE_BYTES, SegmentPool
from chainrule.serve._calls import Call, CallError, Reply, SegmentBody, no_memory, place_body
from chainrule.serve._devices import EXPORTS_DONE_HEADER
from chainrule.serve._logs import RUN_ID
from chainrule.serve._options import ServeOptions
from chainrule.serve._pool import Service
from chainrule.serve._problems import problem_reply
from chainrule.serve._same_host import (
    MEMORY_HEADER,
    ClientMemory,
    SameHostListener,
    UnknownMemoryError,
)

if TYPE_CHECKING:
    from chainrule.serve._jobs import JobReplies

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A caller that leaves is noticed only after this: most calls are over by then, and watching costs.
_WATCH_AFTER_S = 0.03
_NO_QUERY: Mapping[str, str] = {}
# Far above what a sensible caller says, far below what fits into one packet to a worker.
_MAX_TEXT = 1024
# By this a caller names the version of the component that it knows: `x-content-hash` of its document.
CONTENT_HASH_HEADER = b"chainrule-content-hash"
# By this a caller names the jobs among which the key of its call is known, or is to be: `x-job-store`.
JOB_STORE_HEADER = b"chainrule-job-store"
# By this, a caller asks for the inputs of a forward pass to be kept, and names them later.
FORWARD_PASS_HEADER = b"chainrule-forward-pass"


class Endpoint:
    """Answers `POST /<endpoint>` of one component.

    Args:
        service: the component.
        name: of the endpoint.
        options: of the server.
        same_host: receives the shared memory of clients on this host, where that is offered.
        intake: bounds the bodies of all endpoints together.
        jobs: where requests go that are to outlive their connection.
    """

    def __init__(
        self,
        service: Service,
        name: str,
        options: ServeOptions,
        same_host: SameHostListener | None,
        intake: Intake,
        jobs: JobReplies,
    ) -> None:
        self._service = service
        self._name = name
        self._timeout_s = options.read_timeout_s
        self._debug = options.debug
        self._same_host = same_host
        self._intake = intake
        self._jobs = jobs
        # Calls that are merged have one run together.
        self._names_runs = service.merger is None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            reply = await self._reply(scope, receive)
        except Disconnected:
            return
        except ChainruleError as error:
            # The rest of the body may not have been read: this connection cannot be used again.
            # The errors that come here were raised before the pool had the call, and the pool counts all
            # others itself.
            self.refuse(error.http_status)
            await send_reply(send, problem_reply(error), close=True)
            return
        await send_reply(send, reply)

    async def _reply(self, scope: MutableMapping[str, Any], receive: Receive) -> Reply:
        """What is answered.

        Raises:
            ChainruleError: the request is refused before it is a call of the component.
            Disconnected: the caller went away before it had its answer.
        """
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        max_bytes = self._service.facts.max_body_bytes
        nbytes = declared_length(headers, max_bytes)
        query = _query(scope["query_string"])
        self._check_hash(headers.get(CONTENT_HASH_HEADER))
        told = self._told(headers, query, scope.get(RUN_ID) if self._names_runs else None)
        waits = _is_true(query, "wait", "true")
        # The checks go from the cheap to the expensive, and all of them come before the body: a caller whose
        # request cannot be answered learns that before it has sent gigabytes, and holds no memory of `Intake`
        # meanwhile.
        is_job = b"idempotency-key" in headers or not waits
        if is_job:
            self._jobs.check_store(headers.get(JOB_STORE_HEADER))
        memory = self._claim(headers, nbytes, is_job=is_job)
        if memory is not None and memory.body is not None:
            nbytes = memory.body.nbytes
            if nbytes > max_bytes:
                raise _too_large(max_bytes)
        # Held until the reply is there, not only while the body is read: until then the body is in memory.
        with self._intake.room_for(nbytes) as grow:
            pool = None if is_job else self._service.pool.memory
            if memory is None or memory.body is None:
                body = await read_body(
                    receive,
                    nbytes,
                    max_bytes=max_bytes,
                    timeout_s=self._timeout_s,
                    pool=pool,
                    grow=grow,
                )
            else:
                body = memory.body if pool is not None else await memory.read()
            call = Call(self._name, body, *told)
            if is_job:
                key = _text(headers.get(b"idempotency-key"))
                is_idempotent = _is_true(query, "idempotent", "false")
                return await self._take_on(call, key=key, waits=waits, is_idempotent=is_idempotent)
            return await self._answer(call, memory, receive)

    def _claim(
        self, headers: Mapping[bytes, bytes], nbytes: int | None, *, is_job: bool
    ) -> ClientMemory | None:
        """The shared memory that a request names in its headers."""
        named = headers.get(MEMORY_HEADER)
        if named is None:
            return None
        if is_job:
            raise InputError("The body of a job cannot lie in shared memory.", code="bad_segment")
        if self._same_host is None:
            raise UnknownMemoryError("This server shares no memory with its clients.")
        memory = self._same_host.claim(named, is_mapped_here=self._service.pool.memory is None)
        if memory.body is not None and nbytes != 0:
            raise InputError(
                "The body lies in shared memory (Chainrule-Memory); Content-Length has to be 0.",
                code="bad_segment",
            )
        return memory

    def _check_hash(self, expected: bytes | None) -> None:
        """Refuse a call that is meant for another version of the component than this one."""
        if expected is not None and expected != self._service.facts.content_hash.encode():
            raise ChangedComponentError(
                f"{self._service.facts.name} has changed since its caller has read /openapi.json. Read it "
                "again."
            )

    def refuse(self, status: int) -> None:
        """Count a request that does not reach the component."""
        self._service.pool.metrics.refuse(self._name, status)

    async def _take_on(self, call: Call, **how: Any) -> Reply:
        """Make a job of a request."""
        try:
            return await self._jobs.answer(self._service, call, **how)
        except ChainruleError as error:
            return problem_reply(error, debug=self._debug)

    def _told(
        self, headers: Mapping[bytes, bytes], query: Mapping[str, str], run_id: str | None
    ) -> tuple[str, str, str | None, str | None, str | None, str | None, str]:
        """What a caller says about a call, in the order of the fields of `Call`.

        Raises:
            InputError: something is too long (`bad_header`).
        """
        told = (
            _text(headers.get(b"content-type")) or "",
            (_text(headers.get(b"content-encoding")) or "").strip().lower(),
            _text(headers.get(b"accept")),
            query.get("run_id", run_id),
            _text(headers.get(b"traceparent")),
            _text(headers.get(FORWARD_PASS_HEADER)),
            _text(headers.get(EXPORTS_DONE_HEADER)) or "",
        )
        for text in told:
            if text is not None and len(text) > _MAX_TEXT:
                raise InputError(
                    "Content-Type, Content-Encoding, Accept, traceparent, Chainrule-Forward-Pass, "
                    f"Tesseract-Exports-Done and run_id have at most {_MAX_TEXT} characters.",
                    code="bad_header",
                )
        return told

    async def _answer(self, call: Call, memory: ClientMemory | None, receive: Receive) -> Reply:
        """The reply; the work for it is cancelled when the caller disconnects."""
        try:
            if memory is None:
                return await answer_unless_left(self._service.call(call), receive)
            room = None if self._service.pool.memory is None else memory.room
            return await answer_unless_left(
                self._answer_in(call._replace(room=room), memory), receive
            )
        except ChainruleError as error:
            return problem_reply(error, debug=self._debug)

    async def _answer_in(self, call: Call, memory: ClientMemory) -> Reply:
        return await memory.give(await self._service.call(call))


async def answer_unless_left(answer: Awaitable[Reply], receive: Receive) -> Reply:
    """A reply; the work for it is cancelled when the caller disconnects.

    Raises:
        Disconnected: that is so.
    """
    watch = Watch(receive)
    try:
        return await answer
    except asyncio.CancelledError:
        if watch.left:
            raise Disconnected from None
        raise
    finally:
        watch.stop()


class Watch:
    """Cancels the current task when the caller disconnects.

    The race of reply and disconnection: the watcher runs only between two steps of the watched task, and
    `stop` is called in the step in which the reply arrives there. So the cancellation comes either while the
    task still waits for the answer, and expects it, or never.
    """

    def __init__(self, receive: Receive) -> None:
        self.left = False
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(_WATCH_AFTER_S, self._start)

    def _start(self) -> None:
        self._watcher = self._loop.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if self._watched is not None:
            self._watched.cancel()

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _query(text: bytes) -> Mapping[str, str]:
    if not text:
        return _NO_QUERY
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs):
        raise InputError("A parameter of the query is given twice.", code="bad_query")
    return query


def _is_true(query: Mapping[str, str], name: str, default: str) -> bool:
    text = query.get(name, default).lower()
    if text not in ("true", "false"):
        raise InputError(f"{name} is true or false.", code="bad_query")
    return text == "true"


async def send_reply(send: Send, reply: Reply, *, close: bool = False) -> None:
    """Send an encoded answer; its pieces are handed on as they are."""
    try:
        pieces = reply.open()
    except OSError:
        error = StorageError(
            "The server has no memory or no file descriptors left for this answer."
        )
        reply = problem_reply(error)
        pieces = reply.pieces
    headers = _reply_headers(reply, sum(map(len, pieces)))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    # The last piece goes in the message that ends the body, so that no empty one follows. An empty answer has
    # one empty piece: ASGI demands such a last message.
    *first, last = pieces or [b""]
    for piece in first:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last})


async def turn_away(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request beyond the limit; an ASGI application."""
    error = CallError.unavailable("The limit of requests under way is reached.", "connections_full")
    await send_reply(send, problem_reply(error), close=True)


def _reply_headers(reply: Reply, nbytes: int) -> list[tuple[bytes, bytes]]:
    """The HTTP headers of an answer with a body of this length."""
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", str(nbytes).encode()),
        (b"x-content-type-options", b"nosniff"),
        *reply.headers,
    ]
    if reply.retry_after_s is not None:
        headers.append((b"retry-after", str(reply.retry_after_s).encode()))
    if reply.forward_pass is not None:
        headers.append((FORWARD_PASS_HEADER, reply.forward_pass.encode()))
    if reply.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


class ChangedComponentError(ChainruleError):
    """A call for another version of the component: HTTP 412. Nothing was run."""

    default_code = "component_changed"
    http_status = 412
    exit_code = 1


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Grow = Callable[[int], None]
"""Is told of bytes that have come."""


class Disconnected(Exception):  # noqa: N818 - an event, not an error
    """The caller went away before it had its answer."""


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

    def room_for(self, nbytes: int | None) -> _Room:
        """Room for one body while it is read and used: a context manager.

        Args:
            nbytes: the declared length. Without one what is entered is told how much has come.

        Raises:
            CallError: all memory is in use (`memory_busy`); what is entered raises it too.
        """
        return _Room(self, nbytes)

    def take(self, more: int, taken: int) -> None:
        """Take memory for a body that has some already.

        Raises:
            CallError: all memory is in use (`memory_busy`), and others use some of it.
        """
        # A body alone is always let in, even above the bound (each component has its own `max_body_bytes`):
        # otherwise it would be answered 503 "try again" for ever.
        of_others = self._held - taken
        if of_others and self._held + more > self._max_bytes:
            raise CallError.unavailable("The server holds as much data as it may.", "memory_busy")
        self._held += more

    def give_back(self, taken: int) -> None:
        """The memory of a body is free."""
        self._held -= taken


class _Room:
    """The memory of one body; see `Intake.room_for`."""

    __slots__ = ("_intake", "_nbytes", "_taken")

    def __init__(self, intake: Intake, nbytes: int | None) -> None:
        self._intake, self._nbytes, self._taken = intake, nbytes, 0

    def __enter__(self) -> Grow:
        self._grow(self._nbytes or 0)
        return self._grow if self._nbytes is None else _keep

    def __exit__(self, *_: object) -> None:
        self._intake.give_back(self._taken)

    def _grow(self, more: int) -> None:
        self._intake.take(more, self._taken)
        self._taken += more


def _keep(nbytes: int) -> None:
    """Room was made before."""


def declared_length(headers: Mapping[bytes, bytes], max_bytes: int) -> int | None:
    """The length that the `Content-Length` of a request declares, or `None` without one.

    Raises:
        DecodeError: it is not a number.
        LimitError: it is more than `max_bytes`.
    """
    text = headers.get(b"content-length")
    if text is None:
        return None
    text = text.strip()  # spaces around a value are no part of it
    if not text.isdigit():  # it has at most 20 digits: the parser reads it as 64 bits
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
    pool: SegmentPool | None = None,
    grow: Grow = _keep,
) -> Any:
    """A request's body: bytes, or a `SegmentBody` when it is large and a worker process will read it.

    Args:
        receive: of the ASGI connection.
        nbytes: the declared length, if there is one.
        max_bytes: a longer body is refused while it is read.
        timeout_s: how long the caller may pause. The whole body may take that long, plus the time that its
            bytes need at the slowest pace that is allowed.
        pool: a large body goes into this shared memory.
        grow: makes room for what has come.

    Raises:
        LimitError: too large (`body_too_large`).
        SlowCallerError: the caller paused too long, or is too slow.
        Disconnected: the caller went away.
    """
    reader = BodyReader(receive, timeout_s, max_bytes, grow)
    if pool is not None and nbytes is not None and nbytes > INLINE_BYTES:
        return await _into_segment(reader, nbytes, pool)
    body = await reader.next()
    if reader.has_more:
        chunks = [body]
        while reader.has_more:
            chunks.append(await reader.next())
        body = b"".join(chunks)
    return body if pool is None else place_body(body, pool)


class BodyReader:
    """Reads one body piece by piece, within time and size.

    Args:
        receive: of the ASGI connection.
        timeout_s: see `read_body`.
        max_bytes: of the body.
        grow: makes room for what has come.

    Attributes:
        has_more: whether there is a further piece.
    """

    def __init__(self, receive: Receive, timeout_s: float, max_bytes: int, grow: Grow) -> None:
        self._receive = receive
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._grow = grow
        self._began = asyncio.get_running_loop().time()
        self._total = 0
        self.has_more = True

    async def next(self) -> bytes:
        """The next piece.

        Raises:
            LimitError: too large (`body_too_large`).
            SlowCallerError: the caller paused too long, or is too slow.
            Disconnected: the caller went away.
        """
        # One byte now and then would hold a connection, and the memory that the body needs, for days.
        # The first piece is timed from the beginning of the request, so that neither of the two limits is
        # longer than `timeout_s` before anything has come.
        now = asyncio.get_running_loop().time() if self._total else self._began
        next_by = now + self._timeout_s
        all_by = self._began + self._timeout_s + self._total / _MIN_PACE
        try:
            async with asyncio.timeout_at(min(next_by, all_by)):
                message = await self._receive()
        except TimeoutError:
            raise self._too_slow(is_pause=not self._total or next_by <= all_by) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece: bytes = message.get("body", b"")
        self._total += len(piece)
        if self._total > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._grow(len(piece))
        self.has_more = message.get("more_body", False)
        return piece

    def _too_slow(self, *, is_pause: bool) -> SlowCallerError:
        if is_pause:
            return SlowCallerError(
                f"The next part of the body did not come within {self._timeout_s:g} s."
            )
        seconds = asyncio.get_running_loop().time() - self._began
        return SlowCallerError(
            f"The body comes too slowly: {self._total} bytes in {seconds:.0f} s."
        )


async def _into_segment(reader: BodyReader, nbytes: int, pool: SegmentPool) -> SegmentBody:
    try:
        body, position = SegmentBody.create(nbytes, pool), 0
        while reader.has_more:
            position = body.segment.write_at(position, await reader.next())
    except OSError:
        raise no_memory() from None
    return body


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(
        f"The body is larger than the limit of {max_bytes} bytes. The operator of the server can raise "
        "the limit with --max-body-bytes.",
        code="body_too_large",
        details={"limit": max_bytes},
    )

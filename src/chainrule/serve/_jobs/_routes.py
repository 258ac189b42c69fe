"""Jobs over HTTP: requests become jobs, jobs become answers, and `/jobs` and what is below it.

`with_server_routes` describes these routes in the OpenAPI document of a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from chainrule._codec import (
    FRAMES_MEDIA_TYPE,
    TRUSTING_LIMITS,
    Negotiated,
    decode_body,
    negotiate,
)
from chainrule._errors import ChainruleError, InputError
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import Run
from chainrule.serve._answering import encode_result, plain_form
from chainrule.serve._calls import Call, CallError, Reply
from chainrule.serve._connections import FOLLOWS
from chainrule.serve._endpoint import send_reply
from chainrule.serve._jobs._runner import Jobs
from chainrule.serve._jobs._store import STATES, JobRecord, damaged_result
from chainrule.serve._pool import Service
from chainrule.serve._problems import problem_reply

_MAX_KEY = 255


class OtherJobStoreError(ChainruleError):
    """A call whose key another store of jobs may know: HTTP 412. Nothing was run."""

    default_code = "job_store_other"
    http_status = 412
    exit_code = 1


class JobGoneError(ChainruleError):
    """A job whose answer cannot be had any more: HTTP 410."""

    default_code = "job_gone"
    http_status = 410


class JobReplies:
    """Makes jobs of requests, and replies of jobs; answers the routes by which jobs are found.

    Args:
        jobs: the jobs of the server.
        config: which formats are preferred, and where files go.
    """

    def __init__(self, jobs: Jobs, config: ComponentConfig) -> None:
        self.jobs = jobs
        self._config = config

    def check_store(self, expected: bytes | None) -> None:
        """Refuse a call that is meant for a server with other jobs than this one.

        A caller that does not know whether its call has run may repeat it only where its key is known.
        """
        if expected is not None and expected != self.jobs.store_id.encode():
            raise OtherJobStoreError(
                "This server does not have the jobs that Chainrule-Job-Store names: a call that another "
                "server was given with this key could run twice here. x-job-store in /openapi.json is the "
                "name of the jobs of this server."
            )

    async def answer(
        self, service: Service, call: Call, *, key: str | None, waits: bool, is_idempotent: bool
    ) -> Reply:
        """Answer a request that becomes a job.

        Args:
            service: the component.
            call: the request, with its body as bytes.
            key: its `Idempotency-Key`.
            waits: whether the caller waits for the end. A caller that stops waiting does not end the job:
                it has a key, and comes back.
            is_idempotent: whether the caller says that the call may run twice.
        """
        if key is not None and not 0 < len(key) <= _MAX_KEY:
            raise InputError(
                f"An Idempotency-Key has 1 to {_MAX_KEY} characters.", code="bad_idempotency_key"
            )
        Run(self._config, run_id=call.run_id)
        record, is_new = await self.jobs.submit(
            service, call, key, is_idempotent=is_idempotent, waits=waits
        )
        if not waits:
            return self.describe(record, 202, is_repeated=not is_new)
        try:
            record = await self.jobs.wait(record)
            if not record.is_final:
                raise await self._stopping(record)
        finally:
            if is_new:
                self.jobs.let_be_kept(record)
        return _with_headers(await self.result(record, call.accept), record, not is_new)

    async def _stopping(self, record: JobRecord) -> CallError:
        """What a caller gets whose job is not over when the server stops."""
        if await self.jobs.was_forgotten(record):
            return CallError.stopping()
        return CallError.unavailable(
            f"The server is stopping. The call is kept as job {record.id}; send it again with its "
            "Idempotency-Key to a server that has these jobs.",
            "job_kept",
            5,
        )

    def describe(self, record: JobRecord, status: int = 200, *, is_repeated: bool = False) -> Reply:
        """A job object."""
        content = orjson.dumps(record.to_json())
        retry_after_s = 1 if status == 202 else None
        reply = Reply(status, "application/json", [content], retry_after_s)
        return _with_headers(reply, record, is_repeated)

    async def result(self, record: JobRecord, accept: str | None) -> Reply:
        """The answer of a job, or what there is in its place.

        Raises:
            JobGoneError: it was cancelled, or its answer is no longer kept.
        """
        if not record.is_final:
            return self.describe(record, 202)
        if record.state == "cancelled":
            raise JobGoneError("The job was cancelled.", code="job_cancelled")
        content = None if record.result_bytes is None else await self.jobs.result(record)
        if content is None and record.state == "failed":
            return problem_reply(_reason(record))
        if content is None:
            raise JobGoneError(
                "The answer of this job is no longer kept; the operator sets how long with "
                "--job-retention.",
                code="job_expired",
            )
        return await asyncio.to_thread(to_reply, record, content, accept, self._config)

    # The routes

    async def get_list(self, request: Request) -> Response:
        records = await self.jobs.newest(_limit(request), **_filters(request))
        content = orjson.dumps({"jobs": [record.to_json() for record in records]})
        return Response(content, headers=_NOT_STORED, media_type="application/json")

    async def get_one(self, request: Request) -> Reply:
        return self.describe(await self._find(request))

    async def delete(self, request: Request) -> Reply:
        return self.describe(await self.jobs.cancel(await self._find(request)))

    async def get_result(self, request: Request) -> Reply:
        return await self.result(await self._find(request), request.headers.get("accept"))

    async def get_log(self, request: Request) -> Response:
        record = await self._find(request)
        content = await self.jobs.log(record)
        return Response(content, headers=_NOT_STORED, media_type="text/plain; charset=utf-8")

    async def get_events(self, request: Request) -> Response:
        record = await self._find(request)
        request.scope[FOLLOWS] = True
        headers = {**_NOT_STORED, "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._stream(record), media_type="text/event-stream", headers=headers
        )

    async def _stream(self, record: JobRecord) -> AsyncIterator[bytes]:
        """The present state, the log so far, then events until the job is over."""
        if record.is_final:
            for line in await self._past_lines(record):
                yield _event("log", {"line": line})
            yield _event("state", record.to_json())
            return
        async with self.jobs.watch(record) as live, live.listen() as events:
            yield _event("state", live.record.to_json())
            # Listening has begun before the log is read: a line that comes in between is in the log and among
            # the events, and its number tells (`> len(past)`). A line that is not complete yet comes as an
            # event when it is.
            past = await self._past_lines(record, complete=True)
            for line in past:
                yield _event("log", {"line": line})
            async for event in events:
                if event is None:
                    yield b": still here\n\n"
                elif event[0] != "log":
                    yield _event(event[0], event[1].to_json())
                elif event[1][0] > len(past):
                    yield _event("log", {"line": event[1][1]})

    async def _past_lines(self, record: JobRecord, *, complete: bool = False) -> list[str]:
        content = await self.jobs.log(record)
        *lines, rest = content.decode("utf-8", "replace").split("\n")
        return lines if complete or not rest else [*lines, rest]

    async def _find(self, request: Request) -> JobRecord:
        return await self.jobs.get(request.path_params["id"])


def _with_headers(reply: Reply, record: JobRecord, is_repeated: bool) -> Reply:
    headers = [(b"location", f"/jobs/{record.id}".encode()), (b"cache-control", b"no-store")]
    if is_repeated:
        headers.append((b"idempotency-replayed", b"true"))
    return Reply(
        reply.status, reply.content_type, reply.pieces, reply.retry_after_s, headers=tuple(headers)
    )


class _LostJobError(ChainruleError):
    """A job that failed, and of whose answer only the reason is known: HTTP 502, or what it had."""

    default_code = "job_lost"
    http_status = 502


def _reason(record: JobRecord) -> ChainruleError:
    error = _LostJobError(record.error_message or "The job failed.", code=record.error_code)
    error.http_status = record.result_status or error.http_status  # type: ignore[misc]
    return error


def to_reply(
    record: JobRecord, content: bytes, accept: str | None, config: ComponentConfig
) -> Reply:
    """The answer of a job that is over. Takes as long as its arrays are large: not for the event loop.

    Args:
        record: the job.
        content: its stored answer.
        accept: what the caller wants; what it said with the request when it says nothing now.
        config: formats that are preferred, and where files go.

    Raises:
        NotAcceptableError: nothing that was asked for can be produced.
        StorageError: what is stored is damaged (`job_result_damaged`).
    """
    assert record.result_status is not None
    assert record.result_type is not None
    if record.result_status != 200 or record.result_type != FRAMES_MEDIA_TYPE:
        return Reply(record.result_status, record.result_type, [content])
    form = negotiate(
        accept or record.accept,
        default_format=config.output_format,
        default_compression=config.compression,
    )
    form = plain_form(record.endpoint, form)
    if form == Negotiated(FRAMES_MEDIA_TYPE.removeprefix("application/"), None, True):
        return Reply(200, FRAMES_MEDIA_TYPE, [content])
    try:
        tree = decode_body(content, media_type=FRAMES_MEDIA_TYPE, limits=TRUSTING_LIMITS)
    except InputError as error:  # not the fault of a caller
        raise damaged_result() from error
    pieces = encode_result(tree, form, config, lambda: f"run_{record.run_id}")
    return Reply(200, form.media_type, pieces)


_MAX_LISTED = 1000
_NOT_STORED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def job_routes(replies: JobReplies) -> list[Route]:
    """The routes by which callers find, watch, fetch and cancel jobs."""
    return [
        Route("/jobs", _answered(replies.get_list), methods=["GET"]),
        Route("/jobs/{id}", _answered(replies.get_one), methods=["GET"]),
        Route("/jobs/{id}", _answered(replies.delete), methods=["DELETE"]),
        Route("/jobs/{id}/result", _answered(replies.get_result), methods=["GET"]),
        Route("/jobs/{id}/events", _answered(replies.get_events), methods=["GET"]),
        Route("/jobs/{id}/log", _answered(replies.get_log), methods=["GET"]),
    ]


def _answered(
    route: Callable[[Request], Awaitable[Reply | Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            found = await route(request)
        except ChainruleError as error:
            found = problem_reply(error)
        return _Answer(found) if isinstance(found, Reply) else found

    return answer


def _filters(request: Request) -> dict[str, Any]:
    state = request.query_params.get("state")
    if state is not None and state not in STATES:
        raise InputError(f"A state is one of {', '.join(STATES)}.", code="bad_query")
    return {"state": state, "component": request.query_params.get("component")}


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "100")
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) <= _MAX_LISTED:
        raise InputError(f"A limit is a number from 1 to {_MAX_LISTED}.", code="bad_query")
    return int(text)


def _event(kind: str, data: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


class _Answer(Response):
    """An encoded answer as a response."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(status_code=reply.status)
        self._reply = reply

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send_reply(send, self._reply)


# The same routes in the OpenAPI document, beside those of the component, whose part of the document is not
# changed: clients find endpoints by their names.

_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_STATE = {"name": "state", "in": "query", "schema": {"enum": list(STATES)}}
_COMPONENT = {"name": "component", "in": "query", "schema": {"type": "string"}}
_LIMIT = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
}
_TIME = {"type": ["string", "null"], "format": "date-time"}
_JOB = {
    "type": "object",
    "title": "ServerJob",
    "properties": {
        "id": {"type": "string"},
        "component": {"type": "string"},
        "endpoint": {"type": "string"},
        "run_id": {"type": ["string", "null"]},
        "state": {"enum": list(STATES)},
        "fraction": {"type": ["number", "null"]},
        "message": {"type": ["string", "null"]},
        "queue_position": {"type": ["integer", "null"]},
        "submitted_at": _TIME,
        "started_at": _TIME,
        "finished_at": _TIME,
        "error": {"type": ["object", "null"]},
    },
    "required": ["id", "component", "endpoint", "state"],
}
_ONE_JOB = {"$ref": "#/components/schemas/ServerJob"}
_JOBS = {"type": "object", "properties": {"jobs": {"type": "array", "items": _ONE_JOB}}}
_UNKNOWN = {"404": {"description": "There is no such job."}}


def _operation(
    summary: str, *parameters: Mapping[str, Any], media: str, schema: Any = None, **more: Any
) -> dict[str, Any]:
    content = {media: {} if schema is None else {"schema": schema}}
    return {
        "summary": summary,
        "tags": ["server"],
        "parameters": list(parameters),
        "responses": {"200": {"description": "Successful Response", "content": content}, **more},
    }


_JSON = "application/json"
_UNFINISHED = {"description": "It is not finished yet.", "content": {_JSON: {"schema": _ONE_JOB}}}
_GONE = {"description": "It was cancelled, or its result is not kept any more."}
_PATHS: dict[str, Any] = {
    "/jobs": {
        "get": _operation(
            "Jobs, newest first.", _STATE, _COMPONENT, _LIMIT, media=_JSON, schema=_JOBS
        )
    },
    "/jobs/{id}": {
        "get": _operation("One job.", _ID, media=_JSON, schema=_ONE_JOB, **_UNKNOWN),
        "delete": _operation("Cancel a job.", _ID, media=_JSON, schema=_ONE_JOB, **_UNKNOWN),
    },
    "/jobs/{id}/result": {
        "get": _operation(
            "What the endpoint answered.",
            _ID,
            media=_JSON,
            **{"202": _UNFINISHED, "410": _GONE},
            **_UNKNOWN,
        )
    },
    "/jobs/{id}/events": {
        "get": _operation(
            "State, progress and output as they come.", _ID, media="text/event-stream", **_UNKNOWN
        )
    },
    "/jobs/{id}/log": {
        "get": _operation("What the call has printed.", _ID, media="text/plain", **_UNKNOWN)
    },
    "/status": {
        "get": _operation(
            "Components, workers, queue, requests and jobs.", media=_JSON, schema={"type": "object"}
        )
    },
}


def with_server_routes(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of the component at the root, with the routes of its server."""
    components = document.get("components", {})
    schemas = {**components.get("schemas", {}), "ServerJob": _JOB}
    return {
        **document,
        "paths": {**document["paths"], **_PATHS},
        "components": {**components, "schemas": schemas},
    }

"""`/jobs` and what is below it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from chainrule._errors import ChainruleError, InputError
from chainrule.serve._calls import Reply
from chainrule.serve._crowd import FOLLOWS
from chainrule.serve._endpoint import send_reply
from chainrule.serve._jobs._front import JobFront
from chainrule.serve._jobs._record import STATES, JobRecord
from chainrule.serve._problems import problem_reply

_MAX_LISTED = 1000
_NOT_STORED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def job_routes(front: JobFront) -> list[Route]:
    """The routes by which callers find, watch, fetch and cancel jobs."""
    routes = _Routes(front)
    return [
        Route("/jobs", _answered(routes.listed), methods=["GET"]),
        Route("/jobs/{id}", _answered(routes.one), methods=["GET"]),
        Route("/jobs/{id}", _answered(routes.cancelled), methods=["DELETE"]),
        Route("/jobs/{id}/result", _answered(routes.result), methods=["GET"]),
        Route("/jobs/{id}/events", _answered(routes.events), methods=["GET"]),
        Route("/jobs/{id}/log", _answered(routes.log), methods=["GET"]),
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


class _Routes:
    def __init__(self, front: JobFront) -> None:
        self._front = front
        self._jobs = front.jobs

    async def listed(self, request: Request) -> Response:
        records = await self._jobs.newest(*_filters(request))
        content = orjson.dumps({"jobs": [self._jobs.describe(record) for record in records]})
        return Response(content, headers=_NOT_STORED, media_type="application/json")

    async def one(self, request: Request) -> Reply:
        return self._front.describe(await self._find(request))

    async def cancelled(self, request: Request) -> Reply:
        return self._front.describe(await self._jobs.cancel(await self._find(request)))

    async def result(self, request: Request) -> Reply:
        return await self._front.result(await self._find(request), request.headers.get("accept"))

    async def log(self, request: Request) -> Response:
        record = await self._find(request)
        content = await asyncio.to_thread(_read, self._jobs.log_path(record))
        return Response(content, headers=_NOT_STORED, media_type="text/plain; charset=utf-8")

    async def events(self, request: Request) -> Response:
        record = await self._find(request)
        request.scope[FOLLOWS] = True
        headers = {**_NOT_STORED, "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._stream(record), media_type="text/event-stream", headers=headers
        )

    async def _stream(self, record: JobRecord) -> AsyncIterator[bytes]:
        """The present state, the log so far, then events until the job is over."""
        live = self._jobs.live(record.id)
        if live is None:
            for line in await self._past_lines(record):
                yield _event("log", {"line": line})
            yield _event("state", self._jobs.describe(await self._jobs.get(record.id)))
            return
        async with live.listen() as events:
            yield _event("state", self._jobs.describe(live.record))
            past = await self._past_lines(record, complete=True)
            for line in past:
                yield _event("log", {"line": line})
            async for event in events:
                if event is None:
                    yield b": still here\n\n"
                elif event[0] != "log":
                    yield _event(event[0], self._jobs.describe(event[1]))
                elif event[1][0] > len(past):
                    yield _event("log", {"line": event[1][1]})

    async def _past_lines(self, record: JobRecord, *, complete: bool = False) -> list[str]:
        content = await asyncio.to_thread(_read, self._jobs.log_path(record))
        *lines, rest = content.decode("utf-8", "replace").split("\n")
        return lines if complete or not rest else [*lines, rest]

    async def _find(self, request: Request) -> JobRecord:
        return await self._jobs.get(request.path_params["id"])


def _filters(request: Request) -> tuple[Any, int]:
    state = request.query_params.get("state")
    if state is not None and state not in STATES:
        raise InputError(f"A state is one of {', '.join(STATES)}.", code="bad_query")
    text = request.query_params.get("limit", "100")
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) <= _MAX_LISTED:
        raise InputError(f"A limit is a number from 1 to {_MAX_LISTED}.", code="bad_query")
    return state, int(text)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _event(kind: str, data: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


class _Answer(Response):
    """An encoded answer as a response."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(status_code=reply.status)
        self._reply = reply

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send_reply(send, self._reply)

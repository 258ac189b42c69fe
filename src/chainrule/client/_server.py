"""A server beside its components: its status and its jobs.

A job outlives the connection that submitted it, this process and the server itself.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import MISSING, dataclass, fields
from http.client import HTTPResponse
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import orjson

from chainrule._errors import ChainruleError, TransportError
from chainrule._results import Result, Units
from chainrule.client._bodies import Answer, answer_limits, read_answer
from chainrule.client._connections import (
    MAX_DOCUMENT_BYTES,
    ConnectionPool,
    Deadline,
    LostConnectionError,
    Request,
)
from chainrule.client._jobs import Job, Show, not_done_yet, showing

T = TypeVar("T")

_FINAL = frozenset(("succeeded", "failed", "cancelled"))
_STATUS_FIELDS = {"components", "jobs", "latency_s", "queue", "requests", "workers"}
# The server says that it is still there more often than this.
_QUIET_S = 30.0
_MAX_LINE = 1 << 20


@dataclass(frozen=True)
class JobInfo:
    """What a server knows of a job. Times are ISO 8601, in UTC."""

    id: str
    component: str
    endpoint: str
    run_id: str
    state: str
    fraction: float | None = None
    message: str | None = None
    queue_position: int | None = None
    submitted_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: Mapping[str, str] | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> JobInfo:
        """From the job object of a server, which may be of a newer version.

        Raises:
            TransportError: it is no such object (`not_a_component`).
        """
        if not isinstance(content, Mapping) or not content.keys() >= _JOB_FIELDS:
            raise _not_a_server(f"a job with {', '.join(sorted(_JOB_FIELDS))}")
        return cls(**{f.name: content[f.name] for f in fields(cls) if f.name in content})

    @property
    def is_final(self) -> bool:
        """Whether it is over."""
        return self.state in _FINAL


_JOB_FIELDS = {field.name for field in fields(JobInfo) if field.default is MISSING}


class JobEvent(NamedTuple):
    """Something that happened to a job.

    Attributes:
        kind: `state`, `progress` or `log`.
        job: what is known now, unless it is a line of the log.
        line: the line, if it is one.
    """

    kind: str
    job: JobInfo | None = None
    line: str | None = None


class JobServer(ABC):
    """What knows jobs: one server, or several."""

    @abstractmethod
    def job(self, job_id: str) -> JobInfo:
        """What is known of a job."""

    @abstractmethod
    def cancel(self, job_id: str) -> JobInfo:
        """End a job; one that is over stays as it is."""

    @abstractmethod
    def result(self, job_id: str, accept: str | None) -> Any:
        """What a job has computed.

        Raises:
            ChainruleError: what the job raised.
        """

    @abstractmethod
    def log(self, job_id: str) -> str:
        """What the component printed so far."""

    @abstractmethod
    def events(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[JobEvent]:
        """What happens to a job, until it is over.

        Args:
            job_id: of the job.
            timeout_s: how long to follow it; `None` until it is over.

        Raises:
            LostConnectionError: the connection broke, the time is over, or nothing came for a while; the job
                goes on.
        """


class Server(JobServer):
    """What is at a URL, apart from its components.

    Args:
        pool: connections to the server.
        base: path of the server on it.
        headers: sent with every request.
        exchange: sends a request and gives the answer.
        max_answer_bytes: of the answer of a job.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        base: str,
        headers: Mapping[str, str],
        exchange: Callable[[Request], Answer],
        max_answer_bytes: int,
    ) -> None:
        self._pool = pool
        self._base = base
        self._headers = headers
        self._exchange = exchange
        self._max_answer_bytes = max_answer_bytes

    def status(self) -> dict[str, Any]:
        """Load, queue, latency, workers and jobs at present."""
        return self._json("GET", "/status", _STATUS_FIELDS)

    def jobs(
        self, *, state: str | None = None, component: str | None = None, limit: int = 100
    ) -> list[JobInfo]:
        """The last jobs, newest first: all, or those of a state or a component."""
        wanted = {"limit": limit, "state": state, "component": component}
        query = {name: value for name, value in wanted.items() if value is not None}
        found = self._json("GET", f"/jobs?{urlencode(query)}", {"jobs"})
        return [JobInfo.from_json(job) for job in found["jobs"]]

    def job(self, job_id: str) -> JobInfo:
        """What is known of a job."""
        return JobInfo.from_json(self._json("GET", _path(job_id)))

    def cancel(self, job_id: str) -> JobInfo:
        """End a job; one that is over stays as it is."""
        return JobInfo.from_json(self._json("DELETE", _path(job_id)))

    def result(self, job_id: str, accept: str | None) -> Any:
        """What a job has computed."""
        headers = {**self._headers} if accept is None else {**self._headers, "Accept": accept}
        target = f"{self._base}{_path(job_id)}/result"
        request = Request("GET", target, headers, max_bytes=self._max_answer_bytes)
        return read_answer(self._exchange(request), answer_limits(self._max_answer_bytes))

    def log(self, job_id: str) -> str:
        """What the component printed so far."""
        answer = self._send("GET", f"{_path(job_id)}/log")
        return bytes(answer.body).decode("utf-8", "replace")

    def events(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[JobEvent]:
        """What happens to a job, until it is over."""
        request = Request("GET", f"{self._base}{_path(job_id)}/events", self._headers)
        with self._pool.stream(request, Deadline(timeout_s, quiet_s=_QUIET_S)) as response:
            yield from _events(response)

    def _json(self, method: str, path: str, names: Set[str] = frozenset()) -> dict[str, Any]:
        """The object that a path answers, with at least these names in it.

        Raises:
            TransportError: it answers something else (`not_a_component`).
        """
        body = bytes(self._send(method, path).body)
        try:
            found = orjson.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not names <= found.keys():
            words = f" with {', '.join(sorted(names))}" if names else ""
            raise _not_a_server(f"JSON{words} from {self._base}{path.partition('?')[0]}")
        return found

    def _send(self, method: str, path: str) -> Answer:
        answer = self._exchange(Request(method, self._base + path, self._headers))
        if answer.status >= 400:
            read_answer(answer)
        return answer


def _not_a_server(expected: str) -> TransportError:
    return TransportError(
        f"What answers is not a server of Chainrule: expected {expected}. Check the URL.",
        code="not_a_component",
    )


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _events(response: HTTPResponse) -> Iterator[JobEvent]:
    if response.status != 200:
        content_type = response.headers.get("content-type", "")
        read_answer(Answer(response.status, content_type, response.read(MAX_DOCUMENT_BYTES)))
    kind = ""
    while line := response.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ConnectionError(f"an event of more than {_MAX_LINE} bytes")
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield _event(kind, value)


def _event(kind: str, text: str) -> JobEvent:
    try:
        data = orjson.loads(text)
        line = data["line"] if kind == "log" else None
    except (ValueError, LookupError, TypeError) as error:
        raise ConnectionError("an event that is not as the protocol says") from error
    return JobEvent(kind, line=line) if kind == "log" else JobEvent(kind, JobInfo.from_json(data))


_STATUS = {"queued": "waiting", "succeeded": "done"}
_PAUSE_S = 0.2
# How long a server that is being restarted is waited for, and a server whose database is.
_PATIENCE_S = 30.0
NO_DATABASE = "jobs_database_unreachable"
"""What a server says of jobs while their database is away."""


class ServerJob(Job):
    """A job of a server.

    Args:
        server: that has it.
        info: what is known of it.
        accept: the format in which the answer is asked for.

    Attributes:
        units: of the answer, where they are known; set by the component that the job belongs to.
    """

    def __init__(self, server: JobServer, info: JobInfo, accept: str | None) -> None:
        self.label = info.endpoint
        self._server = server
        self._info = info
        self._accept = accept
        self.units: Units | None = None

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except ChainruleError:
            state = _STATUS.get(self._info.state, self._info.state)
            return f"<Job {self.label}: {state} when its server was last heard of>"

    @property
    def id(self) -> str:
        """By which it is found again: `component.job(id)`, `chainrule job list`."""
        return self._info.id

    @property
    def info(self) -> JobInfo:
        """What the server knows of it now."""
        if not self._info.is_final:
            self._info = self._server.job(self.id)
        return self._info

    @property
    def status(self) -> str:
        """`waiting`, `running`, `done`, `failed` or `cancelled`."""
        state = self.info.state
        return _STATUS.get(state, state)

    @property
    def fraction(self) -> float | None:
        """How far along it is, between 0 and 1, if the component says so with `progress`; 1 when done."""
        return self.info.fraction

    @property
    def message(self) -> str | None:
        """What it is doing, if the component says so."""
        return self.info.message

    @property
    def log(self) -> str:
        """What the component printed so far."""
        return self._server.log(self.id)

    def events(self) -> Iterator[JobEvent]:
        """Changes of state, progress and lines of the log as they come, until the job is over."""
        return self._server.events(self.id)

    def result(self, timeout: float | None = None, *, progress: Show = False) -> Any:
        """The answer of the call, waited for; see `Job.result`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with showing(progress, self.label) as show:
            while not self._info.is_final:
                self._follow(deadline, show)
            if self._info.state == "cancelled":
                raise self._cancelled()
            return Result.of(self._answer(deadline), self.units)

    def cancel(self) -> None:
        """Cancel the call. Its worker is free when this returns."""
        self._info = self._server.cancel(self.id)

    async def _wait(self) -> Any:
        try:
            return await asyncio.to_thread(self.result)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.cancel)
            raise

    def _follow(self, deadline: float | None, show: Callable[[float, str], Any]) -> None:
        """Learn what happens until the job is over, the connection breaks, or time is up."""
        try:
            for event in self._server.events(self.id, timeout_s=_left(deadline)):
                if event.job is not None:
                    self._info = event.job
                    if event.job.fraction is not None:
                        show(event.job.fraction, event.job.message or "")
                _left(deadline)
        except TransportError as error:
            if not (isinstance(error, LostConnectionError) or error.code == NO_DATABASE):
                raise
            self._info = self._patiently(lambda: self._server.job(self.id), deadline)

    def _answer(self, deadline: float | None) -> Any:
        # Any other error is how the job ended.
        return self._patiently(
            lambda: self._server.result(self.id, self._accept), deadline, only=NO_DATABASE
        )

    def _patiently(
        self, ask: Callable[[], T], deadline: float | None, *, only: str | None = None
    ) -> T:
        """Ask the server again while it, or its database, cannot be reached; `only` names one reason."""
        patience = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask()
            except TransportError as error:
                if time.monotonic() > patience or only not in (None, error.code):
                    raise
            _left(deadline)
            time.sleep(_PAUSE_S)


def _left(deadline: float | None) -> float | None:
    """Seconds until the deadline.

    Raises:
        TimeoutError: it has passed.
    """
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise not_done_yet()
    return left

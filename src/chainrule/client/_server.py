"""A server beside its components: how it is, and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from http.client import HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import orjson

from chainrule.client._answers import Answer, answer_limits, read_answer
from chainrule.client._connections import (
    MAX_DOCUMENT_BYTES,
    ConnectionPool,
    Deadline,
    Request,
)

_FINAL = frozenset(("succeeded", "failed", "cancelled"))
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
        """From the job object of a server, which may be newer than we are."""
        return cls(**{f.name: content[f.name] for f in fields(cls) if f.name in content})

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in _FINAL


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


class Server:
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
        return self._json("GET", "/status")

    def jobs(self, *, state: str | None = None, limit: int = 100) -> list[JobInfo]:
        """The last jobs, newest first."""
        query = {"limit": limit} | ({} if state is None else {"state": state})
        found = self._json("GET", f"/jobs?{urlencode(query)}")
        return [JobInfo.from_json(job) for job in found["jobs"]]

    def job(self, job_id: str) -> JobInfo:
        """What is known of a job."""
        return JobInfo.from_json(self._json("GET", _path(job_id)))

    def cancel(self, job_id: str) -> JobInfo:
        """End a job; one that is over stays as it is."""
        return JobInfo.from_json(self._json("DELETE", _path(job_id)))

    def result(self, job_id: str, accept: str | None) -> Any:
        """What a job has computed.

        Raises:
            ChainruleError: what the job raised.
        """
        headers = {**self._headers} if accept is None else {**self._headers, "Accept": accept}
        target = f"{self._base}{_path(job_id)}/result"
        request = Request("GET", target, headers, max_bytes=self._max_answer_bytes)
        return read_answer(self._exchange(request), answer_limits(self._max_answer_bytes))

    def log(self, job_id: str) -> str:
        """What the component printed so far."""
        answer = self._send("GET", f"{_path(job_id)}/log")
        return bytes(answer.body).decode("utf-8", "replace")

    def events(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[JobEvent]:
        """What happens to a job, until it is over.

        Args:
            job_id: of the job.
            timeout_s: how long to follow it; `None` until it is over.

        Raises:
            LostConnectionError: the connection broke, the time is over, or nothing came for a while; the job
                goes on.
        """
        request = Request("GET", f"{self._base}{_path(job_id)}/events", self._headers)
        with self._pool.stream(request, Deadline(timeout_s, quiet_s=_QUIET_S)) as response:
            yield from _events(response)

    def _json(self, method: str, path: str) -> dict[str, Any]:
        return orjson.loads(bytes(self._send(method, path).body))

    def _send(self, method: str, path: str) -> Answer:
        answer = self._exchange(Request(method, self._base + path, self._headers))
        if answer.status >= 400:
            read_answer(answer)
        return answer


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _events(response: HTTPResponse) -> Iterator[JobEvent]:
    if response.status != 200:
        content_type = response.headers.get("content-type", "")
        read_answer(Answer(response.status, content_type, response.read(MAX_DOCUMENT_BYTES)))
    kind = ""
    while line := response.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ConnectionError("an event is longer than any of a job")
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            data = orjson.loads(value)
            if kind == "log":
                yield JobEvent(kind, line=data["line"])
            else:
                yield JobEvent(kind, job=JobInfo.from_json(data))

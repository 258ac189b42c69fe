"""Where callers and jobs meet: requests become jobs, jobs become answers."""

from __future__ import annotations

import asyncio

import orjson

from chainrule._errors import ChainruleError, InputError
from chainrule.runtime.internal import ComponentConfig, Run
from chainrule.serve._calls import Call, Reply, stopping
from chainrule.serve._jobs._record import JobRecord
from chainrule.serve._jobs._results import to_reply
from chainrule.serve._jobs._runner import Jobs
from chainrule.serve._problems import problem_reply
from chainrule.serve._service import Service

_MAX_KEY = 255


class JobGoneError(ChainruleError):
    """A job whose answer cannot be had any more: HTTP 410."""

    default_code = "job_gone"
    http_status = 410


class JobFront:
    """Takes jobs on and hands answers out.

    Args:
        jobs: the jobs of the server.
        config: which formats are preferred, and where files go.
    """

    def __init__(self, jobs: Jobs, config: ComponentConfig) -> None:
        self.jobs = jobs
        self._config = config

    async def answer(self, service: Service, call: Call, *, key: str | None, waits: bool) -> Reply:
        """Answer a request that is to be a job.

        Args:
            service: the component.
            call: the request, with its body as bytes.
            key: its `Idempotency-Key`.
            waits: whether the caller waits for the end. A caller that stops waiting does not end the job:
                it has a key, and comes back.
        """
        if key is not None and not 0 < len(key) <= _MAX_KEY:
            raise InputError(
                f"An Idempotency-Key has 1 to {_MAX_KEY} characters.", code="bad_idempotency_key"
            )
        Run(self._config, run_id=call.run_id)
        record, is_new = await self.jobs.submit(service, call, key)
        if not waits:
            return self.describe(record, 202, is_repeated=not is_new)
        record = await self.jobs.wait(record)
        if not record.is_final:
            raise stopping()
        return _with_headers(await self.result(record, call.accept), record, not is_new)

    def describe(self, record: JobRecord, status: int = 200, *, is_repeated: bool = False) -> Reply:
        """A job object."""
        content = orjson.dumps(self.jobs.describe(record))
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

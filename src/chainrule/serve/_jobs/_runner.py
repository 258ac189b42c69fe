"""Runs jobs: taken on durably, given to the workers in order, ended in a definite state.

A job's way is `queued → running → succeeded | failed | cancelled`. Each step is on disk before the next one
begins: a job is acknowledged after its row is safe, and its worker starts after the row says `running`. So a
server that is killed at any moment leaves only jobs that certainly have not run (they are run by the next
server) and jobs that may have run (they are reported as failed).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from chainrule._codec import FRAMES_MEDIA_TYPE, negotiate
from chainrule._errors import CapabilityError, ChainruleError, InputError, StorageError
from chainrule._files import Scratch
from chainrule.serve._calls import Call, CallError, Reply
from chainrule.serve._jobs._live import JobLog, JobQueue, JobWatcher, LiveJob
from chainrule.serve._jobs._store import JobRecord, JobStore, State, body_digest
from chainrule.serve._logs import Output
from chainrule.serve._options import ServeOptions
from chainrule.serve._pool import Service
from chainrule.serve._problems import problem_reply

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Between two removals of old jobs, two attempts to hand a job to a full queue, and two attempts to write the
# end of a job to a disk that is full.
_SWEEP_S = 60.0
_RETRY_S = 0.2
_KEEP_AGAIN_S = 1.0


class Jobs:
    """The jobs of one server. For the event loop; the disk is touched by one thread behind it.

    Args:
        options: where jobs are kept, how long, how many.
        output: where the output of jobs goes as well.
    """

    def __init__(self, options: ServeOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._temporary: Scratch | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chainrule-jobs")
        self._live: dict[str, LiveJob] = {}
        self._queues: dict[str, JobQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._is_stopped = False

    async def start(self, services: Mapping[str, Service]) -> None:
        """Find the jobs of the last server again, and begin.

        Raises:
            ChainruleError: the folder cannot be used.
        """
        self._store = await self._in_thread(self._open)
        for name, service in services.items():
            self._queues[name] = JobQueue(service)
        for record in await self._in_thread(self._store.recover):
            await self._resume(record)
        for queue in self._queues.values():
            for _ in range(queue.service.pool.size):
                self._spawn(self._work(queue))
        self._spawn(self._sweep())

    def _open(self) -> JobStore:
        folder = self._options.jobs_folder
        if folder is None:
            self._temporary = Scratch("jobs")
            folder = self._temporary.path
        return JobStore(
            folder,
            retention_s=self._options.job_retention_s,
            max_bytes=self._options.max_job_bytes,
        )

    async def _resume(self, record: JobRecord) -> None:
        queue = self._queues.get(record.component)
        if queue is None or record.endpoint not in queue.service.facts.endpoints:
            message = f"This server no longer serves {record.component}/{record.endpoint}."
            error = CapabilityError(message, code="component_missing")
            await self._finish(LiveJob(record), "failed", problem_reply(error))
            return
        live = self._live[record.id] = LiveJob(record)
        queue.put(live)

    # What callers do

    async def submit(
        self, service: Service, call: Call, key: str | None = None
    ) -> tuple[JobRecord, bool]:
        """Take a job on, or find the one that was taken on with the same key.

        Returns:
            The job, and whether it is new.

        Raises:
            InputError: the key was used with another request (`idempotency_key_reused`), or something the
                caller says cannot be used.
            CallError: too many jobs wait, or the server stops.
            StorageError: the job cannot be kept.
        """
        if self._is_stopping:
            raise CallError.stopping()
        negotiate(call.accept)
        component = service.name
        digest = await self._in_default_thread(lambda: body_digest(call.body))
        if key is not None:
            known = await self._in_thread(self._store.with_key, component, call.endpoint, key)
            if known is not None:
                return self._same_request(known, digest), False
        queue = self._queues[component]
        if len(queue) >= self._options.max_jobs:
            raise CallError.unavailable(
                f"{self._options.max_jobs} jobs wait already.", "queue_full", 5
            )
        record = JobRecord(
            component=component,
            endpoint=call.endpoint,
            run_id=call.run_id or "",
            content_type=call.content_type,
            content_encoding=call.content_encoding,
            accept=call.accept,
            traceparent=call.traceparent,
            idempotency_key=key,
            body_digest=digest,
        )
        record = replace(record, run_id=call.run_id or record.id)
        # Known before it is on disk: a request with the same key may see the row before `add` returns.
        live = self._live[record.id] = LiveJob(record)
        try:
            await asyncio.shield(self._in_thread(self._store.add, record, call.body))
        except StorageError:
            del self._live[record.id]
            # Two requests with one key at the same time: the index let only the first one in.
            if key is None:
                raise
            known = await self._in_thread(self._store.with_key, component, call.endpoint, key)
            if known is None:
                raise
            return self._same_request(known, digest), False
        queue.put(live)
        return record, True

    def _same_request(self, known: JobRecord, digest: str) -> JobRecord:
        if known.body_digest != digest:
            raise InputError(
                "This Idempotency-Key was used with another body before; use a new key for a new request.",
                code="idempotency_key_reused",
                details={"job": known.id},
            )
        live = self._live.get(known.id)
        return known if live is None else live.record

    async def get(self, job_id: str) -> JobRecord:
        """What is known of a job.

        Raises:
            CapabilityError: there is no such job (`job_unknown`).
        """
        live = self._live.get(job_id)
        record = live.record if live else await self._in_thread(self._store.get, job_id)
        if record is None:
            raise CapabilityError(f"There is no job {job_id[:64]!r}.", code="job_unknown")
        return record

    async def newest(self, state: State | None, limit: int) -> list[JobRecord]:
        """The last jobs, newest first."""
        records = await self._in_thread(self._store.newest, state, limit)
        now = [self._live[r.id].record if r.id in self._live else r for r in records]
        return [record for record in now if state is None or record.state == state]

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return await self._in_thread(self._store.counts)

    def live(self, job_id: str) -> LiveJob | None:
        """A job that is not over."""
        return self._live.get(job_id)

    def describe(self, record: JobRecord) -> dict[str, Any]:
        """The job object that callers see."""
        position = None
        if record.state == "queued" and record.component in self._queues:
            position = self._queues[record.component].position(record.id)
        return record.to_json(position)

    async def result(self, record: JobRecord) -> bytes | None:
        """The stored answer of a job that is over; `None` when it is gone.

        Raises:
            StorageError: it is damaged.
        """
        return await self._in_thread(self._store.result, record)

    def log_path(self, record: JobRecord) -> Path:
        """The file with the output of a job."""
        return self._store.log_path(record.id)

    async def cancel(self, record: JobRecord) -> JobRecord:
        """End a job; its worker is free when this returns. A job that is over stays as it is."""
        live = self._live.get(record.id)
        if live is None:
            return record
        live.is_cancelled = True
        # The race of reply and cancellation: a job whose worker has replied (`is_ending`) keeps its outcome,
        # which the task is about to write down. Cancelling the task then would lose the answer.
        if live.task is not None:
            if not live.is_ending:
                live.task.cancel()
        elif self._queues[record.component].remove(live):
            await self._finish(live, "cancelled", None)
        await live.ended.wait()
        return live.record

    async def wait(self, record: JobRecord) -> JobRecord:
        """The job once it is over."""
        live = self._live.get(record.id)
        if live is None:
            return await self.get(record.id)
        await live.ended.wait()
        return live.record

    # What happens to them

    async def _work(self, queue: JobQueue) -> None:
        while True:
            live = await queue.take()
            live.task = task = asyncio.create_task(self._run(live, queue.service))
            await asyncio.wait([task])
            if not live.ended.is_set():
                await self._finish_without(live, task)
            if self._is_stopping:
                return

    async def _finish_without(self, live: LiveJob, task: asyncio.Task[None]) -> None:
        """End a job whose task did not come to its end."""
        if live.is_cancelled:
            # A task that is cancelled before its first step never takes one.
            await self._finish(live, "cancelled", None)
        elif task.cancelled():
            live.end()  # the server stops, and the next one runs the job
        else:
            error = task.exception()
            _log.error("job %s failed in the server", live.record.id, exc_info=error)
            await self._finish(live, "failed", problem_reply(_server_failed(error)))

    async def _run(self, live: LiveJob, service: Service) -> None:
        log, timeout_s = self._make_log(live), self._options.job_timeout_s
        watcher = JobWatcher(live, log, self._mark_running, timeout_s)
        try:
            reply = await self._reply(live, service, watcher)
        except asyncio.CancelledError:
            if not live.is_cancelled:
                raise  # the server stops, and the job has not begun
            reply = None
        finally:
            live.is_ending = True
            await self._in_default_thread(watcher.output.close)
        if reply is None:
            await self._finish(live, "cancelled", None)
        else:
            await self._finish(live, "succeeded" if reply.status == 200 else "failed", reply)

    async def _reply(self, live: LiveJob, service: Service, watcher: JobWatcher) -> Reply:
        """The answer of the component, or of the server in its place."""
        record = live.record
        while True:
            try:
                body = await self._in_thread(self._store.body, record)
                return await service.pool.call(self._call(record, body, service, watcher))
            except CallError as error:
                if watcher.has_started:
                    return problem_reply(_as_end_of_job(error))
                if self._is_stopping:
                    raise asyncio.CancelledError from error
                await asyncio.sleep(_RETRY_S)  # no room now: it has not run, so it may wait
            except ChainruleError as error:
                return problem_reply(error, debug=self._options.debug)

    def _call(self, record: JobRecord, body: bytes, service: Service, watcher: JobWatcher) -> Call:
        wants_files = negotiate(record.accept).format == "json+binref"
        return Call(
            record.endpoint,
            service.pool.placed(body),
            content_type=record.content_type,
            content_encoding=record.content_encoding,
            # Kept in the format that loses nothing; the caller who fetches it chooses the one it is sent in.
            accept=record.accept if wants_files else FRAMES_MEDIA_TYPE,
            run_id=record.run_id,
            traceparent=record.traceparent,
            watcher=watcher,
        )

    async def _mark_running(self, live: LiveJob) -> None:
        """Let the disk say that a job may have run, before it does."""
        running = replace(live.record, state="running", started_at=time.time())
        await self._in_thread(self._store.update, running)
        live.record = running
        live.publish("state", running)

    async def _finish(self, live: LiveJob, state: State, reply: Reply | None) -> None:
        record = replace(live.record, state=state, finished_at=time.time())
        pieces = None
        if reply is not None:
            pieces = reply.open()
            record = replace(
                record,
                result_status=reply.status,
                result_type=reply.content_type,
                result_bytes=reply.nbytes,
            )
            if state == "failed":
                code, message = _error_of(pieces)
                record = replace(record, error_code=code, error_message=message)
            else:
                record = replace(record, fraction=1.0)
        try:
            await asyncio.shield(self._in_thread(self._store.finish, record, pieces))
            self._live.pop(record.id, None)
        except StorageError as error:
            _log.error("job %s ended, but cannot be kept: %s", record.id, error.message)
            record = _without_result(record, error)
            # It stays among the live ones, so that callers learn its end from here, not from the disk.
            self._live[record.id] = live
            self._spawn(self._keep_at_last(live))
        live.record = record
        live.publish("state", record)
        live.end()

    async def _keep_at_last(self, live: LiveJob) -> None:
        """Write the end of a job to the disk, as soon as that is possible."""
        while not await self._was_kept(live):
            await asyncio.sleep(_KEEP_AGAIN_S)

    async def _was_kept(self, live: LiveJob) -> bool:
        try:
            await asyncio.shield(self._in_thread(self._store.finish, live.record, None))
        except StorageError:
            return False
        self._live.pop(live.record.id, None)
        return True

    async def _sweep(self) -> None:
        while True:
            try:
                await self._in_thread(self._store.sweep)
            except StorageError as error:
                _log.error("old jobs cannot be removed: %s", error.message)
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._options.job_retention_s / 2)))

    # The end

    def hold(self) -> None:
        """Begin no more jobs; those that wait are for the next server."""
        self._is_stopping = True
        for queue in self._queues.values():
            queue.hold()
        for live in list(self._live.values()):
            if live.task is None:
                live.end()  # callers who wait for it come back to the next server

    async def stop(self) -> None:
        """Wait until everything that was decided is on disk."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.hold()
        running = [live.task for live in self._live.values() if live.task is not None]
        if running:
            await asyncio.wait(running, timeout=5.0)
        for task in [*self._tasks, *running]:
            task.cancel()
        for live in list(self._live.values()):
            if live.record.is_final:
                await self._was_kept(live)
        if hasattr(self, "_store"):
            await self._in_thread(self._store.close)
        self._thread.shutdown()
        if self._temporary is not None:
            self._temporary.remove()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _in_default_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    def _make_log(self, live: LiveJob) -> JobLog:
        """Where the output of a job goes."""
        loop = asyncio.get_running_loop()

        def on_line(number: int, line: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there are no listeners
                loop.call_soon_threadsafe(live.publish, "log", (number, line))

        return JobLog(self._store.log_path(live.record.id), on_line, self._output.writer())


def _as_end_of_job(error: CallError) -> CallError:
    if error.code != "shutting_down":
        return error
    return CallError(
        "The server was stopped while this job was running. It is not run again unasked, because it may "
        "have had effects; submit it again if that is safe.",
        code="server_stopped",
        status=503,
    )


def _server_failed(error: BaseException | None) -> CallError:
    return CallError(
        f"The server failed while it ran this job ({type(error).__name__}); its log says more.",
        code="internal_error",
        status=500,
    )


def _without_result(record: JobRecord, error: StorageError) -> JobRecord:
    """A job whose answer cannot be stored: its end is known, and one that succeeded has failed after all."""
    record = replace(record, result_type=None, result_bytes=None)
    if record.state != "succeeded":
        return record
    return replace(
        record,
        state="failed",
        error_code=error.code,
        error_message=error.message,
        result_status=error.http_status,
    )


def _error_of(pieces: list[Any]) -> tuple[str, str]:
    try:
        problem = orjson.loads(b"".join(pieces))
        return str(problem["code"]), str(problem["message"])
    except (ValueError, KeyError, TypeError):
        return "component_failed", "The component failed."

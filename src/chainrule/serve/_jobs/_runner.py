"""Runs jobs: taken on durably, given to the workers in order, ended in a definite state.

A job's way is `queued → running → succeeded | failed | cancelled`. Each step is stored before the next one
begins: a job is acknowledged after its row is safe, and its worker starts after the row says `running`. So a
server that is killed at any moment leaves only jobs that certainly have not run (they are run by another
server) and jobs that may have run (they are reported as failed, unless they may run twice).

A server asks its store for a job when a worker has nothing to do. What callers of this server follow is in
`_live`: jobs that run here, and jobs of which the store says how they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import orjson

from chainrule._codec import FRAMES_MEDIA_TYPE, negotiate
from chainrule._errors import CapabilityError, ChainruleError, InputError, StorageError
from chainrule._files import Scratch
from chainrule.serve._calls import Call, CallError, Reply
from chainrule.serve._jobs._files import FileJobStore
from chainrule.serve._jobs._live import JobLog, JobWatcher, LiveJob
from chainrule.serve._jobs._store import (
    JobQueue,
    JobRecord,
    JobStore,
    LeaseLostError,
    State,
    body_digest,
    server_stopped,
)
from chainrule.serve._logs import Output
from chainrule.serve._options import ServeOptions
from chainrule.serve._pool import Service
from chainrule.serve._problems import problem_reply

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Between two removals of old jobs, two attempts to hand a job to a full queue, two attempts to use a store
# that failed, and two looks at whether other servers hear of this one.
_SWEEP_S = 60.0
_RETRY_S = 0.2
_AGAIN_S = 1.0
# How long `/metrics` and `/status` wait for numbers; Prometheus gives up after ten seconds.
_COUNT_S = 3.0


class Jobs:
    """The jobs of one server. For the event loop; the store is used by threads behind it.

    Args:
        options: where jobs are kept, how long, how many.
        output: where the output of jobs goes as well.
    """

    def __init__(self, options: ServeOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._temporary: Scratch | None = None
        self._store: JobStore
        self._threads: ThreadPoolExecutor | None = None
        self._live: dict[str, LiveJob] = {}
        self._to_cancel: set[str] = set()
        self._unacknowledged: set[str] = set()
        self._forgotten: set[str] = set()
        self._taking: set[asyncio.Task[JobRecord | None]] = set()
        self._has_held = asyncio.Event()
        self._work_came = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._is_stopped = False

    async def start(self, services: Mapping[str, Service]) -> None:
        """Find the jobs of the last server again, and begin.

        Raises:
            ChainruleError: the folder or the database cannot be used.
        """
        self._store = store = await asyncio.to_thread(self._make_store)
        self._threads = ThreadPoolExecutor(store.threads, thread_name_prefix="chainrule-jobs")
        # The order: signals may come from the first moment on in which the store is open; jobs of components
        # that are not served end before any worker asks for one; workers begin last.
        signals = _LoopSignals(asyncio.get_running_loop(), self)
        await self._in_thread(store.open, signals, set(services))
        for record in await self._in_thread(store.orphans, set(services)):
            await self._finish(LiveJob(record), "failed", problem_reply(_not_served(record)))
        for service in services.values():
            for _ in range(service.pool.size):
                self._spawn(self._work(service))
        self._spawn(self._sweep())
        if store.is_shared:
            self._spawn(self._mind())

    def _make_store(self) -> JobStore:
        settings: dict[str, Any] = {
            "retention_s": self._options.job_retention_s,
            "max_bytes": self._options.max_job_bytes,
        }
        if self._options.jobs is not None:
            from chainrule.serve._jobs._postgres import PostgresJobStore

            return PostgresJobStore(
                self._options.read_jobs_url(),
                objects=self._options.jobs_objects,
                lease_s=self._options.job_lease_s,
                **settings,
            )
        folder = self._options.jobs_folder
        if folder is None:
            self._temporary = Scratch("jobs")
            folder = self._temporary.path
        return FileJobStore(folder, **settings)

    @property
    def store_id(self) -> str:
        """By which callers know where the keys of their calls are known."""
        return self._store.id

    # What callers do

    async def submit(
        self,
        service: Service,
        call: Call,
        key: str | None = None,
        *,
        is_idempotent: bool = False,
        waits: bool = False,
    ) -> tuple[JobRecord, bool]:
        """Take a job on, or find the one that was taken on with the same key.

        Args:
            service: the component.
            call: the request, with its body as bytes.
            key: its `Idempotency-Key`.
            is_idempotent: whether the caller says that the call may run twice.
            waits: whether the caller waits for the end, and calls `let_be_kept` then.

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
        digest = await self._in_default_thread(lambda: body_digest(call.body))
        record = JobRecord(
            component=service.name,
            endpoint=call.endpoint,
            run_id=call.run_id or "",
            content_type=call.content_type,
            content_encoding=call.content_encoding,
            accept=call.accept,
            traceparent=call.traceparent,
            idempotency_key=key,
            body_digest=digest,
            is_idempotent=is_idempotent,
        )
        record = replace(record, run_id=call.run_id or record.id)
        if waits:
            # Before the job can be found by its key: a caller that finds it, and is told of it, comes later.
            self._unacknowledged.add(record.id)
        try:
            found = await self._add(record, call.body)
        except BaseException:
            self.let_be_kept(record)
            raise
        if found.id == record.id:
            if self._is_stopping:
                await self._remove(record.id)
            return found, True
        self.let_be_kept(record)
        if not waits:
            self.let_be_kept(found)
        # The digest is of the bytes as they came. Two encodings of the same values are different requests:
        # telling that they are equal would need the component's schema, and a false yes would give out a
        # wrong answer.
        if found.body_digest != digest:
            raise InputError(
                "This Idempotency-Key was used with another body before; use a new key for a new request.",
                code="idempotency_key_reused",
                details={"job": found.id},
            )
        return self._now(found), False

    async def _add(self, record: JobRecord, body: Any) -> JobRecord:
        """Store a job, or find the one with its key."""
        add = partial(self._store.add, record, body, max_waiting=self._options.max_jobs)
        adding = asyncio.ensure_future(self._in_thread(add))
        # The thread cannot be stopped, so the row appears in any case. `shield` keeps the future, and the
        # callback wakes a worker for a job whose caller is gone.
        adding.add_done_callback(lambda _: self.work_came())
        return await asyncio.shield(adding)

    async def get(self, job_id: str) -> JobRecord:
        """What is known of a job.

        Raises:
            CapabilityError: there is no such job (`job_unknown`).
        """
        live = self._live.get(job_id)
        if live is not None and live.is_held:
            return live.record
        record = await self._in_store(lambda store: store.get(job_id))
        if record is None:
            raise CapabilityError(f"There is no job {job_id[:64]!r}.", code="job_unknown")
        return self._now(record)

    def _now(self, record: JobRecord) -> JobRecord:
        """What is known of a job that the store knows: more, where it runs here."""
        live = self._live.get(record.id)
        return live.record if live is not None and live.is_held else record

    async def newest(
        self, limit: int, *, state: State | None = None, component: str | None = None
    ) -> list[JobRecord]:
        """The last jobs, newest first: all, or those of a state or a component."""
        records = await self._in_store(
            lambda store: store.newest(limit, state=state, component=component)
        )
        now = map(self._now, records)
        return [record for record in now if state is None or record.state == state]

    async def tally(self) -> dict[tuple[str, str], int] | None:
        """Component and state → how many jobs; `None` while that cannot be learnt."""
        try:
            return await asyncio.wait_for(self._in_store(lambda store: store.tally()), _COUNT_S)
        except (StorageError, TimeoutError) as error:
            _log.warning("jobs cannot be counted: %s", error or "the database does not answer")
            return None

    async def queues(self) -> dict[str, JobQueue] | None:
        """Component → its jobs that wait; `None` while that cannot be learnt."""
        try:
            return await asyncio.wait_for(self._in_store(lambda store: store.queues()), _COUNT_S)
        except (StorageError, TimeoutError) as error:
            _log.warning(
                "jobs that wait cannot be counted: %s", error or "the database does not answer"
            )
            return None

    async def result(self, record: JobRecord) -> bytes | None:
        """The stored answer of a job that is over; `None` when it is gone.

        Raises:
            StorageError: it is damaged.
        """
        return await self._in_store(lambda store: store.result(record))

    async def log(self, record: JobRecord) -> bytes:
        """What a job has printed."""
        live = self._live.get(record.id)
        if live is not None and live.log is not None:
            await self._in_default_thread(live.log.flush)
        return await self._in_store(lambda store: store.log(record.id))

    async def cancel(self, record: JobRecord) -> JobRecord:
        """End a job; its worker is free when this returns. A job that is over stays as it is."""
        if record.is_final:
            return record
        # The store decides the race of start and cancellation: either it takes the job out of the queue for
        # this caller, and it never runs, or a server has it, which is told to stop it (`cancel_asked`).
        # `wait` serves both.
        withdrawn = await self._in_store(lambda store: store.withdraw(record.id))
        if withdrawn is not None:
            await self._finish(self._hold(withdrawn), "cancelled", None)
        return await self.wait(record)

    def let_be_kept(self, record: JobRecord) -> None:
        """Note that the caller of a job waits no longer, or that another one was told of it."""
        self._unacknowledged.discard(record.id)

    async def was_forgotten(self, record: JobRecord) -> bool:
        """Whether a job had not begun when the server was stopped, and never will."""
        await self._has_held.wait()
        return record.id in self._forgotten

    async def wait(self, record: JobRecord) -> JobRecord:
        """The job once it is over, or as it is when the server stops."""
        while not record.is_final:
            async with self.watch(record) as live:
                await live.ended.wait()
                record = live.record
            if self._is_stopping:
                break
            if not record.is_final:
                record = await self.get(record.id)
        return record

    @asynccontextmanager
    async def watch(self, record: JobRecord) -> AsyncIterator[LiveJob]:
        """A job that is not over, to listen to; wherever it runs."""
        live = self._live.get(record.id)
        if live is None:
            live = self._live[record.id] = LiveJob(record)
            live.follower = self._spawn(self._follow(live))
        live.watchers += 1
        try:
            yield live
        finally:
            live.watchers -= 1
            if not live.is_held and not live.watchers:
                self._forget(live)

    def _forget(self, live: LiveJob) -> None:
        if self._live.get(live.record.id) is live:
            del self._live[live.record.id]
        if live.follower is not None:
            live.follower.cancel()

    async def _follow(self, live: LiveJob) -> None:
        """Tell listeners what the store says of a job, until it is over or runs here."""
        lines = _Lines()
        while not self._is_stopping:
            live.news.clear()
            with contextlib.suppress(StorageError):
                record = await self._in_thread(self._store.get, live.record.id)
                # The log is read after the state: that of a job which is over is then complete.
                log = await self._in_thread(self._store.log, live.record.id, lines.nbytes)
                for line in lines.after(log, is_all=record is None or record.is_final):
                    live.publish("log", line)
                if _tell(live, record):
                    break
            if not self._store.is_shared:
                return  # from here on only this server changes the job
            await _set_within(live.news, self._store.poll_s)
        live.end()

    # What the store says

    def work_came(self) -> None:
        """Let all workers that have nothing to do look for a job."""
        # Each looks after it has read this attribute: what comes later is a new event for it.
        came, self._work_came = self._work_came, asyncio.Event()
        came.set()

    def job_changed(self, job_id: str) -> None:
        """There is news of a job."""
        live = self._live.get(job_id)
        if live is not None:
            live.news.set()

    def cancel_asked(self, job_id: str) -> None:
        """End a job that runs here."""
        live = self._live.get(job_id)
        if live is None or live.task is None:
            self._to_cancel.add(job_id)  # its record is on the way here from a thread
            return
        live.is_cancelled = True
        # The race of reply and cancellation: a job whose worker has replied (`is_ending`) keeps its outcome,
        # which the task is about to write down. Cancelling the task then would lose the answer.
        if not live.is_ending:
            live.task.cancel()

    def lease_lost(self, job_id: str) -> None:
        """Stop a job that runs here: another server may run it."""
        live = self._live.get(job_id)
        if live is not None and live.task is not None and not live.is_lost:
            _log.error(
                "job %s is stopped: the database did not hear of this server in time", job_id
            )
            live.is_lost = True
            live.task.cancel()

    async def _mind(self) -> None:
        """Stop the jobs of this server when other servers may believe that it has ended."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            if self._store.silent_s() > self._store.max_silent_s:
                for job_id in list(self._live):
                    self.lease_lost(job_id)

    # What happens to them

    async def _work(self, service: Service) -> None:
        while (record := await self._next(service)) is not None:
            live = self._hold(record)
            # Asked for between `take` and now: no row says `running` yet, so the job ends without having run.
            if live.is_cancelled:
                await self._finish(live, "cancelled", None)
                continue
            live.task = task = asyncio.create_task(self._run(live, service))
            # `wait`, not `await task`: a job that is cancelled would raise its CancelledError here and end
            # this loop, which runs the jobs of one worker for the life of the server.
            await asyncio.wait([task])
            if not live.ended.is_set():
                await self._finish_without(live, task)

    async def _next(self, service: Service) -> JobRecord | None:
        """The next job for a worker, waited for; `None` when the server stops."""
        while not self._is_stopping:
            came, pause_s = self._work_came, self._store.poll_s
            record = None
            try:
                taking = asyncio.create_task(self._take(service))
                self._taking.add(taking)
                taking.add_done_callback(self._taking.discard)
                record = await taking
            except StorageError as error:
                if error.code != "jobs_database_unreachable":  # its store says that, once
                    _log.error("jobs cannot be taken: %s", error.message)
                # Polled by each worker at its own time: a store that is down must not be asked in a tight
                # loop, and no signal comes from it while it is.
                pause_s = _AGAIN_S
            if record is not None:
                return record
            await _set_within(came, pause_s)
        return None

    async def _take(self, service: Service) -> JobRecord | None:
        """A job for a worker, if one waits and the server does not stop."""
        record = await self._in_thread(self._store.take, service.name)
        if record is not None and self._is_stopping:
            await self._give_back(record)
            return None
        return record

    def _hold(self, record: JobRecord) -> LiveJob:
        """A job that this server has taken, with those who follow it already."""
        live = self._live.setdefault(record.id, LiveJob(record))
        if live.follower is not None:
            live.follower.cancel()
        live.record, live.is_held = record, True
        live.is_cancelled = record.id in self._to_cancel
        self._to_cancel.discard(record.id)
        return live

    async def _give_back(self, record: JobRecord) -> None:
        with contextlib.suppress(StorageError):  # its lease ends instead
            await self._in_store(lambda store: store.give_back(record))
            if self._is_stopping:
                await self._remove(record.id)

    async def _remove(self, job_id: str) -> None:
        """Remove a job that waits, and of which only a waiting caller knows."""
        if job_id in self._unacknowledged and await self._in_thread(self._store.forget, job_id):
            self._forgotten.add(job_id)

    async def _finish_without(self, live: LiveJob, task: asyncio.Task[None]) -> None:
        """End a job whose task did not come to its end."""
        error = None if task.cancelled() else task.exception()
        if live.is_lost or isinstance(error, LeaseLostError):
            self._lose(live)
        elif live.is_cancelled:
            # A task that is cancelled before its first step never takes one.
            await self._finish(live, "cancelled", None)
        elif error is None:
            await self._give_back(live.record)
            self._lose(live)  # the server stops, and another one runs the job
        else:
            _log.error("job %s failed in the server", live.record.id, exc_info=error)
            await self._finish(live, "failed", problem_reply(_server_failed(error)))

    def _lose(self, live: LiveJob) -> None:
        """Let those who follow a job look for it again: this server does not know how it ends."""
        self._store.let_go(live.record)
        self._forget(live)
        live.end()

    async def _run(self, live: LiveJob, service: Service) -> None:
        live.log = log = await self._make_log(live)
        timeout_s = self._options.job_timeout_s
        watcher = JobWatcher(live, log, self._mark_running, self._store.report, timeout_s)
        try:
            reply = await self._reply(live, service, watcher)
        except asyncio.CancelledError:
            if live.is_lost or not live.is_cancelled:
                # A task is cancelled for one of three reasons: its caller asked (`is_cancelled`: it ends as
                # cancelled), its lease is lost, or the server stops. In the last two cases only the store may
                # say how the job ends.
                raise  # another server runs it
            reply = None
        finally:
            # From here on the outcome is decided, and no caller may interrupt the steps that store it. This
            # line and the `except` above run in one step of the event loop, so `cancel_asked` sees either a
            # task that can be cancelled or one that is ending.
            live.is_ending = True
            await self._in_default_thread(watcher.output.close)
        if reply is None:
            await self._finish(live, "cancelled", None)
        else:
            await self._finish(live, "succeeded" if reply.status == 200 else "failed", reply)

    async def _reply(self, live: LiveJob, service: Service, watcher: JobWatcher) -> Reply:
        """The answer of the component, or of the server in its place."""
        record = live.record
        if record.endpoint not in service.facts.endpoints:
            return problem_reply(_not_served(record))
        while True:
            try:
                body = await self._in_store(lambda store: store.body(record))
                return await service.pool.call(self._call(record, body, service, watcher))
            except LeaseLostError:
                raise
            except CallError as error:
                # Before `has_started` the row does not say `running`: the call was turned away by a full
                # queue or by a pool that restarts, and may be tried again. Afterwards it may have had
                # effects, and the error is its end.
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
        """Let the store say that a job may have run, before it does."""
        live.record = await self._in_store(lambda store: store.start(live.record))
        live.publish("state", live.record)

    async def _finish(self, live: LiveJob, state: State, reply: Reply | None) -> None:
        record = replace(live.record, state=state)
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
            # An end that is being written is written: the thread goes on in any case, and a task that left in
            # between would let `_finish_without` write a second, different end.
            record = await asyncio.shield(
                self._in_store(lambda store: store.finish(record, pieces))
            )
            self._forget(live)
        except LeaseLostError:
            self._lose(live)
            return
        except StorageError as error:
            _log.error("job %s ended, but cannot be kept: %s", record.id, error.message)
            record = _without_result(replace(record, finished_at=time.time()), error)
            # It stays among the live ones, so that callers learn its end from here, not from the store.
            self._live[record.id] = live
            self._spawn(self._keep_at_last(live))
        live.record = record
        live.publish("state", record)
        live.end()

    async def _keep_at_last(self, live: LiveJob) -> None:
        """Store the end of a job as soon as that is possible."""
        while not await self._was_kept(live):
            await asyncio.sleep(_AGAIN_S)

    async def _was_kept(self, live: LiveJob) -> bool:
        try:
            await asyncio.shield(self._in_store(lambda store: store.finish(live.record, None)))
        except LeaseLostError:
            pass
        except StorageError:
            return False
        self._forget(live)
        return True

    async def _sweep(self) -> None:
        while True:
            try:
                await self._in_store(lambda store: store.sweep())
            except StorageError as error:
                _log.error("old jobs cannot be removed: %s", error.message)
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._options.job_retention_s / 2)))

    # The end

    async def hold(self) -> None:
        """Begin no more jobs; those that wait are for the next server, or for another one.

        A job of which only a waiting caller knows is forgotten: the caller learns that it has not begun, and
        may go to another server at once, also where that server does not have these jobs.
        """
        self._is_stopping = True
        self.work_came()
        if self._taking:  # what is taken now is given back, and can be forgotten then
            await asyncio.wait(self._taking, timeout=_COUNT_S)
        with contextlib.suppress(StorageError):  # they are kept
            for job_id in list(self._unacknowledged):
                await self._remove(job_id)
        self._has_held.set()
        for live in list(self._live.values()):
            if not live.is_held:
                live.end()  # callers who wait for it come back to the next server

    async def stop(self) -> None:
        """Wait until everything that was decided is stored."""
        if self._is_stopped:
            return
        self._is_stopped = True
        await self.hold()
        running = [live.task for live in self._live.values() if live.task is not None]
        # Jobs get five seconds to store their ends: `pool.stop` has failed their calls by now. What is still
        # undecided then is for the store: a row that says `running` without a server is reported as failed.
        if running:
            await asyncio.wait(running, timeout=5.0)
        for task in [*self._tasks, *running]:
            task.cancel()
        for live in list(self._live.values()):
            if live.record.is_final:
                await self._was_kept(live)
        if self._threads is not None:
            await self._in_thread(self._store.close)
            self._threads.shutdown()
        if self._temporary is not None:
            self._temporary.remove()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_store(self, function: Callable[[JobStore], T]) -> T:
        return await self._in_thread(function, self._store)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def _in_default_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def _make_log(self, live: LiveJob) -> JobLog:
        """Where the output of a job goes."""
        loop = asyncio.get_running_loop()
        # Where it was started before, its lines are counted on.
        before = await self.log(live.record) if live.record.attempts else b""
        first = before.count(b"\n")

        def on_line(number: int, line: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there are no listeners
                loop.call_soon_threadsafe(live.publish, "log", (first + number, line))

        return JobLog(self._store.log_writer(live.record), on_line, self._output.writer())


class _LoopSignals:
    """What a store says on its threads, on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, jobs: Jobs) -> None:
        self._loop = loop
        self._jobs = jobs

    def work_came(self) -> None:
        self._call(self._jobs.work_came)

    def job_changed(self, job_id: str) -> None:
        self._call(self._jobs.job_changed, job_id)

    def cancel_asked(self, job_id: str) -> None:
        self._call(self._jobs.cancel_asked, job_id)

    def lease_lost(self, job_id: str) -> None:
        self._call(self._jobs.lease_lost, job_id)

    def _call(self, function: Callable[..., None], *arguments: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(function, *arguments)


class _Lines:
    """Lines of a log that is read in pieces.

    Attributes:
        nbytes: how much was read.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        # Bytes are read from an offset, and a line may be cut in two by it: the rest waits in `_rest` for the
        # next piece. Splitting at b"\n" never cuts a UTF-8 sequence, as 0x0A occurs in no multi-byte
        # character.
        self._number = 0
        self._rest = b""

    def after(self, content: bytes, *, is_all: bool) -> list[tuple[int, str]]:
        """The lines that are complete with this piece, with their numbers from 1."""
        self.nbytes += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        if is_all and self._rest:
            lines.append(self._rest)
        first, self._number = self._number + 1, self._number + len(lines)
        return [(n, line.decode("utf-8", "replace")) for n, line in enumerate(lines, first)]


def _tell(live: LiveJob, record: JobRecord | None) -> bool:
    """Tell listeners what has changed; whether that was the last of it."""
    if record is None:
        return True
    before, live.record = live.record, record
    if record.state != before.state:
        live.publish("state", record)
    elif (record.fraction, record.message) != (before.fraction, before.message):
        live.publish("progress", record)
    return record.is_final


async def _set_within(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _not_served(record: JobRecord) -> CapabilityError:
    message = f"This server no longer serves {record.component}/{record.endpoint}."
    return CapabilityError(message, code="component_missing")


def _as_end_of_job(error: CallError) -> CallError:
    if error.code != "shutting_down":
        return error
    return server_stopped()


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

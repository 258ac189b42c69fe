"""The jobs of several servers, in a PostgreSQL database. Its tables and statements are in `_statements`.

Which server holds a job is in its row: `owner`, until `lease_until`. A server renews its leases every third
of their time, and only measures for how long it was silent. Once a lease is over, any server may take the job
from its owner (`EXPIRED`).

`NOTIFY` wakes servers that wait for work or for news of a job. It is a hint: servers look again every few
seconds without it, because a connection pooler may lose it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from chainrule._errors import ChainruleError, DefinitionError, StorageError, missing_dependency
from chainrule.serve._jobs import _statements as sql
from chainrule.serve._jobs._objects import Objects, open_objects
from chainrule.serve._jobs._store import (
    COLUMNS,
    FINAL,
    INLINE_BYTES,
    RECORD_FACTOR,
    JobQueue,
    JobRecord,
    JobStore,
    LeaseLostError,
    LogWriter,
    Signals,
    checked_body,
    checked_result,
    chosen,
    digest_of,
    queue_full,
    server_stopped,
    storable,
    stored,
)

try:
    import psycopg
except ImportError as _error:
    raise missing_dependency(
        "Jobs in a database need", "psycopg", "'chainrule[postgresql]'"
    ) from _error

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Keys of advisory locks: who makes the tables, who sweeps.
_MAKING, _SWEEPING = 0x6A6F6273_01, 0x6A6F6273_02

_THREADS = 4
_CONNECT_S = 10
# How long a caller waits for a database that is being restarted; between two attempts; between two looks
# without a signal; between two writes of progress and logs.
_PATIENCE_S = 15.0
_RETRY_S = 0.25
_POLL_S = 2.0
_TICK_S = 0.5
# Without a place for large bodies, rows hold them up to this size: the database moves them as a whole.
_MAX_ROW_BYTES = 256 << 20
_BATCH = 500
# Between two looks for bodies that no row names.
_COLLECT_S = 3600.0
_PORTS = re.compile(r"[\d,]*")


class PostgresJobStore(JobStore):
    """The jobs of several servers, in a database. For several threads.

    Args:
        url: of the database; never shown, because it may hold a password.
        objects: where large bodies are, see `open_objects`; `None` for the database.
        lease_s: how long the database waits for a server to say that it lives.
        retention_s, max_bytes: see `JobStore`.

    Raises:
        DefinitionError: it is not such a URL (`bad_jobs_url`).
        StorageError: the database cannot be used (`jobs_database_unreachable`, `jobs_database_refused`), or
            was written by another version (`jobs_database_format`).
    """

    threads = _THREADS
    is_shared = True
    poll_s = _POLL_S

    def __init__(
        self,
        url: str,
        *,
        objects: str | None,
        lease_s: float,
        retention_s: float,
        max_bytes: int,
    ) -> None:
        super().__init__(retention_s=retention_s, max_bytes=max_bytes)
        self._settings = _connection_settings(url)
        self._objects: Objects | None = None if objects is None else open_objects(objects)
        self._lease_s = lease_s
        self._owner = secrets.token_hex(12)
        # What this server holds; used by all threads.
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._heard_at = time.monotonic()
        self._is_closing = threading.Event()
        self._is_closed = threading.Event()
        self._minder = threading.Thread(
            target=self._mind, name="chainrule-jobs-minder", daemon=True
        )
        self._watcher = threading.Thread(
            target=self._watch, name="chainrule-jobs-watcher", daemon=True
        )
        self._idle: deque[psycopg.Connection] = deque()
        # Objects to be removed with the next sweep: what renews leases does not wait for another service.
        self._unused: deque[str] = deque()
        self._collect_at = 0.0
        # Connection → since when a thread waits for it.
        self._in_use: dict[psycopg.Connection, float] = {}
        self._watcher.start()
        try:
            self._prepare()
        except BaseException:
            self._is_closed.set()
            raise

    def _prepare(self) -> None:
        """Make the tables, unless they are there.

        Raises:
            StorageError: the database cannot be used.
        """
        try:
            with psycopg.connect(**self._settings) as connection, self._watched(connection):
                # Of several servers that start at the same time, one makes the tables.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
                (table,) = _row(connection.execute("SELECT to_regclass('chainrule_jobs_format')"))
                if table is None:
                    connection.execute(sql.SCHEMA)
                (version,) = _row(connection.execute("SELECT version FROM chainrule_jobs_format"))
                if version == 1:
                    connection.execute(sql.SECOND)
                    connection.execute("UPDATE chainrule_jobs_format SET version = 2")
                    version = 2
                if version == sql.VERSION:
                    self.id = self._identify(connection)
                    if self._objects is not None:
                        self._check_place(connection, self._objects)
        except psycopg.OperationalError as error:
            raise _unreachable(
                f"It says: {_said(error)}. Check that it runs, and the host, the database, the user and the "
                "password that --jobs names"
            ) from None
        except psycopg.Error as error:
            raise StorageError(
                f"The tables of jobs in the database cannot be made or read: {_said(error)}. The user of "
                "--jobs needs the right to create tables in a schema of the search path.",
                code="jobs_database_refused",
            ) from None
        if version != sql.VERSION:
            raise StorageError(
                f"The jobs in this database are of format {version}, and this version of Chainrule reads "
                f"format {sql.VERSION}. Update Chainrule on this server, or give it another database.",
                code="jobs_database_format",
            )

    def _identify(self, connection: psycopg.Connection) -> str:
        """The id of these jobs, which their first server has given them."""
        # Not a part of the format: servers that do not know this table may go on using the others.
        (table,) = _row(connection.execute("SELECT to_regclass('chainrule_jobs_store')"))
        if table is None:
            connection.execute("CREATE TABLE chainrule_jobs_store (id text NOT NULL)")
            connection.execute(
                "INSERT INTO chainrule_jobs_store VALUES (%s)", [secrets.token_hex(12)]
            )
        (found,) = _row(connection.execute("SELECT id FROM chainrule_jobs_store"))
        return found

    def _check_place(self, connection: psycopg.Connection, objects: Objects) -> None:
        """Find the mark that the first server with large bodies left among them.

        A folder that is not mounted, or another bucket, would hide the requests of acknowledged jobs.

        Raises:
            StorageError: the mark is not there (`jobs_objects_other`).
        """
        (table,) = _row(connection.execute("SELECT to_regclass('chainrule_jobs_place')"))
        if table is None:
            mark = f"chainrule-jobs-{secrets.token_hex(12)}"
            objects.put(mark, [b"The bodies of jobs of one database are here.\n"])
            connection.execute("CREATE TABLE chainrule_jobs_place (mark text NOT NULL)")
            connection.execute("INSERT INTO chainrule_jobs_place VALUES (%s)", [mark])
            return
        (mark,) = _row(connection.execute("SELECT mark FROM chainrule_jobs_place"))
        if objects.get(mark) is None:
            raise StorageError(
                f"Other servers keep the large bodies of these jobs elsewhere: {mark} is not in the place "
                "that --jobs-objects names. Give all servers the same place, and mount the folder before "
                "they start. If the bodies were moved or are lost, put a file of that name there.",
                code="jobs_objects_other",
            )

    def open(self, signals: Signals, components: Collection[str]) -> None:
        """Begin to renew leases, and to listen."""
        self._signals = signals
        self._components = list(components)
        self._minder.start()

    def close(self) -> None:
        """End; what this server holds and has not started waits again, and the rest has failed."""
        self._is_closing.set()
        if self._minder.is_alive():
            self._minder.join(_CONNECT_S)
        with self._lock:
            # The minder has ended, or hangs in the database: from here on it has nothing to renew.
            held, self._held = self._held, {}
        self._close_idle()
        if self.silent_s() < self.max_silent_s:  # else their leases end
            with contextlib.suppress(psycopg.Error), self._connection() as connection:
                self._give_all_back(connection, held)
        self._close_idle()
        self._is_closed.set()

    def _give_all_back(self, connection: psycopg.Connection, held: dict[str, _Held]) -> None:
        unstarted = [job_id for job_id, job in held.items() if not job.is_started]
        connection.execute(sql.GIVE_BACK, {"ids": unstarted, "owner": self._owner})
        over = "lease_until = now() - interval '1 second'"
        connection.execute(
            f"UPDATE chainrule_jobs SET {over} WHERE id = ANY(%s) AND owner = %s",
            [[job_id for job_id, job in held.items() if job.is_started], self._owner],
        )
        self._take_over(connection)
        connection.execute("DELETE FROM chainrule_jobs_servers WHERE owner = %s", [self._owner])
        while self._unused:
            self._remove(self._unused.popleft())

    # What is asked of it

    def add(self, record: JobRecord, body: Any, *, max_waiting: int) -> JobRecord:
        """Take a job on, unless one with its idempotency key is known."""
        known = self._with_key(record)
        if known is not None:
            return known
        if self._do(lambda connection: _waiting(connection, record.component)) >= max_waiting:
            raise queue_full(max_waiting)
        inline, name = self._keep(record.id, "request", [body])
        values = {**stored(record), "request": inline, "request_object": name}

        def insert(connection: psycopg.Connection) -> JobRecord | None:
            connection.execute(sql.ADD, values)
            # Its own row, also where the statement was done before a connection broke.
            return next(iter(_jobs(connection, "id = %s", record.id)), None)

        added = self._do(insert)
        if added is not None:
            return added
        self._remove(name)
        known = self._with_key(record)
        if known is None:
            raise StorageError("A job with the same key was removed just now; submit it again.")
        return known

    def _with_key(self, record: JobRecord) -> JobRecord | None:
        if record.idempotency_key is None:
            return None
        where = "component = %s AND endpoint = %s AND idempotency_key = %s"
        key = [
            storable(text) for text in (record.component, record.endpoint, record.idempotency_key)
        ]
        return next(iter(self._do(lambda connection: _jobs(connection, where, *key))), None)

    def take(self, component: str) -> JobRecord | None:
        """Hold the job of a component that has waited longest."""
        return self._hold(sql.TAKE, component=component)

    def withdraw(self, job_id: str) -> JobRecord | None:
        """Hold a job that waits, in order to end it; or tell the server that holds it."""
        record = self._hold(sql.WITHDRAW, id=job_id)
        if record is None:
            asked = "UPDATE chainrule_jobs SET cancel_asked = true WHERE id = %s AND NOT state = ANY(%s)"
            self._do(
                lambda connection: (
                    connection.execute(asked, [job_id, list(FINAL)]),
                    connection.execute("SELECT pg_notify(%s, %s)", [sql.CHANNEL, job_id]),
                )
            )
        return record

    def _hold(self, statement: str, **arguments: str) -> JobRecord | None:
        values = {**arguments, "owner": self._owner, "lease": self._lease_s}
        # Where a connection breaks after the database has committed, `_do` takes a second job and the first
        # has this owner but is not in `_held`: its lease is not renewed, so it waits again (`EXPIRED`) and is
        # not lost.
        row = self._do(lambda connection: connection.execute(statement, values).fetchone())
        if row is None:
            return None
        record = _record(row)
        with self._lock:
            self._held[record.id] = _Held(record)
        return record

    def forget(self, job_id: str) -> bool:
        """Remove a job that waits; whether it did."""
        row = self._do(lambda connection: connection.execute(sql.FORGET, {"id": job_id}).fetchone())
        if row is None:
            return False
        self._remove(row[0])
        return True

    def give_back(self, record: JobRecord) -> None:
        """Let a job that is held but has not been started wait again."""
        self._release(record.id)
        values = {"ids": [record.id], "owner": self._owner}
        self._do(lambda connection: connection.execute(sql.GIVE_BACK, values))

    def let_go(self, record: JobRecord) -> None:
        """Renew the lease of a job no longer."""
        self._release(record.id)

    def start(self, record: JobRecord) -> JobRecord:
        """Say that a job which is held may have run from now on."""
        values = {"id": record.id, "owner": self._owner, "final": list(FINAL)}
        row = self._do_held(
            record, lambda connection: connection.execute(sql.START, values).fetchone()
        )
        if row is None:
            raise self._lost(record)
        with self._lock:
            if record.id in self._held:
                self._held[record.id].is_started = True
        return replace(record, state="running", started_at=row[0], attempts=row[1])

    def finish(self, record: JobRecord, result: list[Any] | None) -> JobRecord:
        """Keep the end of a job that is held."""
        inline, name = None, None
        if result is not None:
            inline, name = self._keep(record.id, "result", result)
            record = replace(record, result_digest=digest_of(result))
        values = {
            **stored(record),
            "result": inline,
            "result_object": name,
            "owner": self._owner,
            "final": list(FINAL),
        }

        def end(connection: psycopg.Connection) -> Any:
            # The name of the request is read before the statement sets it to NULL; its object is removed
            # after that. A server that is killed in between leaves an object without a row, for `_collect`.
            (request,) = connection.execute(
                "SELECT request_object FROM chainrule_jobs WHERE id = %s", [record.id]
            ).fetchone() or (None,)
            row = connection.execute(sql.FINISH, values).fetchone()
            if row is None:  # lost, or done already on a connection that broke
                mine = "SELECT finished_at FROM chainrule_jobs WHERE id = %s AND owner = %s AND state = %s"
                row = connection.execute(mine, [record.id, self._owner, record.state]).fetchone()
            return row and (row[0], request)

        found = self._do_held(record, end)
        self._release(record.id)
        if found is None:
            self._remove(name)
            raise self._lost(record)
        self._remove(found[1])
        return replace(record, finished_at=found[0])

    def report(self, record: JobRecord) -> None:
        """The component said how far along it is; it is written with the next tick."""
        with self._lock:
            if record.id in self._held:
                self._held[record.id].progress = record

    def body(self, record: JobRecord) -> bytes:
        """The request of a job that is held."""
        return checked_body(record, self._do_held(record, self._reading(record.id, "request")))

    def result(self, record: JobRecord) -> bytes | None:
        """The stored answer; `None` when it is gone."""
        return checked_result(record, self._do(self._reading(record.id, "result")))

    def _reading(self, job_id: str, kind: str) -> Callable[[psycopg.Connection], bytes | None]:
        def read(connection: psycopg.Connection) -> bytes | None:
            columns = f"SELECT {kind}, {kind}_object FROM chainrule_jobs WHERE id = %s"
            cursor = connection.cursor(binary=True)
            inline, name = cursor.execute(columns, [job_id]).fetchone() or (None, None)
            if name is not None and self._objects is not None:
                return self._objects.get(name)
            return inline

        return read

    def get(self, job_id: str) -> JobRecord | None:
        """A job by its id."""
        found = self._do(lambda connection: _jobs(connection, "id = %s", storable(job_id)))
        return next(iter(found), None)

    def newest(
        self, limit: int, *, state: str | None = None, component: str | None = None
    ) -> list[JobRecord]:
        """The last jobs that were taken on, newest first: all, or those of a state or a component."""
        where, values = chosen("%({})s", state=state, component=component)
        last = f"SELECT * FROM chainrule_jobs {where} ORDER BY number DESC LIMIT %(limit)s"
        statement = (
            f"SELECT place, {sql.FIELDS} FROM ({last}) AS chainrule_jobs "
            f"LEFT JOIN {sql.PLACES} AS places USING (number) ORDER BY number DESC"
        )
        arguments = {**values, "limit": limit}
        rows = self._do(lambda connection: connection.execute(statement, arguments).fetchall())
        return [_record(row, place) for place, *row in rows]

    def tally(self) -> dict[tuple[str, str], int]:
        """Component and state → how many jobs."""
        sums = "SELECT component, name, sum(n)::bigint FROM chainrule_jobs_tally "
        sums += "WHERE name <> 'bytes' GROUP BY component, name"
        rows = self._do(lambda connection: connection.execute(sums).fetchall(), _POLL_S)
        return {(component, state): n for component, state, n in rows}

    def queues(self) -> dict[str, JobQueue]:
        """Component → its jobs that wait, where there are any."""
        rows = self._do(lambda connection: connection.execute(sql.QUEUES).fetchall(), _POLL_S)
        return {
            # At least this one: it may not have said yet that it is there.
            component: JobQueue(waiting, max(0.0, oldest_s), max(1, servers))
            for component, waiting, oldest_s, servers in rows
        }

    def log_writer(self, record: JobRecord) -> LogWriter:
        """What keeps the output of a job that is held."""
        with self._lock:
            held = self._held.get(record.id)
        # Each attempt has 2^32 numbers of its own: the pieces of a second attempt come after those of the
        # first, whose server may still write its last ones, and do not collide with them.
        log = _LogParts(self, record.id, first=record.attempts << 32)
        if held is not None:
            held.log = log
        return log

    def append(self, job_id: str, part: int, content: bytes) -> None:
        """Keep a piece of a log."""
        values = {"id": job_id, "part": part, "content": content}
        self._do(lambda connection: connection.execute(sql.APPEND, values))

    def log(self, job_id: str, since: int = 0) -> bytes:
        """What a job has printed, from a byte on."""
        rows = self._do(lambda connection: connection.execute(sql.LOG, [job_id, since]).fetchall())
        return b"".join(content[max(0, since - first) :] for content, first in rows)

    def sweep(self) -> None:
        """Drop results past their time, the oldest beyond the bound, and old jobs; one server at a time."""
        while self._unused:
            self._remove(self._unused.popleft())
        for step in (
            self._drop_expired,
            self._drop_excess,
            self._forget_old,
            _add_tallies,
            _forget_servers,
        ):
            while self._do(partial(_alone, work=step)):
                pass
        if self._objects is not None and time.monotonic() > self._collect_at:
            self._collect_at = time.monotonic() + _COLLECT_S
            self._do(partial(_alone, work=self._collect))

    def _drop_expired(self, connection: psycopg.Connection) -> bool:
        return self._drop(connection, f"finished_at < {sql.NOW} - %s", self._retention_s, _BATCH)

    def _drop_excess(self, connection: psycopg.Connection) -> bool:
        tally = "SELECT coalesce(sum(n), 0)::bigint FROM chainrule_jobs_tally WHERE name = 'bytes'"
        # The tally is exact: the trigger that counts runs in the transaction that changes a row. Only one
        # server sweeps at a time (`_alone`), so no two of them drop results for the same excess.
        excess = _row(connection.execute(tally))[0] - self._max_bytes
        if excess <= 0:
            return False
        sizes = "SELECT result_bytes FROM chainrule_jobs WHERE result_bytes IS NOT NULL "
        sizes += "ORDER BY number LIMIT %s"
        count = 0
        for (size,) in connection.execute(sizes, [_BATCH]).fetchall():
            count, excess = count + 1, excess - size
            if excess <= 0:
                break
        self._drop(connection, "true", count)
        return excess > 0

    def _drop(self, connection: psycopg.Connection, where: str, *arguments: float) -> bool:
        """Drop the oldest results; whether there may be more."""
        chosen = (
            "SELECT number, result_object FROM chainrule_jobs WHERE result_bytes IS NOT NULL AND "
        )
        chosen += f"{where} ORDER BY number LIMIT %s"
        rows = connection.execute(chosen, arguments).fetchall()
        numbers = [number for number, _ in rows]
        self._remove(*(name for _, name in rows))
        gone = "result = NULL, result_bytes = NULL, result_object = NULL"
        connection.execute(f"UPDATE chainrule_jobs SET {gone} WHERE number = ANY(%s)", [numbers])
        connection.execute("DELETE FROM chainrule_jobs_log WHERE number = ANY(%s)", [numbers])
        return len(rows) == _BATCH

    def _forget_old(self, connection: psycopg.Connection) -> bool:
        old = f"SELECT number FROM chainrule_jobs WHERE finished_at < {sql.NOW} - %s LIMIT %s"
        gone = connection.execute(
            f"DELETE FROM chainrule_jobs WHERE number IN ({old})",
            [RECORD_FACTOR * self._retention_s, _BATCH],
        )
        return gone.rowcount == _BATCH

    def _collect(self, connection: psycopg.Connection) -> bool:
        """Remove bodies that no row names: their servers were killed between writing a body and its row."""
        assert self._objects is not None
        # A body is written before its row, so a young object without a row may be one whose row is on the
        # way.
        age_s = max(RECORD_FACTOR * self._retention_s, _COLLECT_S)
        names = self._objects.older_than(age_s)
        self._remove(*(name for (name,) in connection.execute(sql.UNNAMED, [names])))
        return False

    # Large bodies

    def _keep(self, job_id: str, kind: str, pieces: list[Any]) -> tuple[bytes | None, str | None]:
        """A body for its row, or the name under which it is kept beside the database."""
        size = sum(memoryview(piece).nbytes for piece in pieces)
        if self._objects is not None and size > INLINE_BYTES:
            # The owner is in the name: a server that is late does not write over the result of another.
            name = f"{job_id}-{self._owner}.{kind}"
            self._objects.put(name, pieces)
            return None, name
        if size > _MAX_ROW_BYTES:
            raise StorageError(
                f"The {kind} of a job has {size} bytes; the database of jobs keeps at most {_MAX_ROW_BYTES} "
                "of one. The operator can keep larger ones beside it with --jobs-objects s3://BUCKET/PREFIX.",
                code="job_too_large",
            )
        return b"".join(pieces), None

    def _remove(self, *names: str | None) -> None:
        if self._objects is not None:
            self._objects.remove(*(name for name in names if name is not None))

    # Connections

    def _do(self, work: Callable[[psycopg.Connection], T], patience_s: float = _PATIENCE_S) -> T:
        """Do something with a connection; again while the database is being restarted.

        Raises:
            StorageError: the database does not answer, or refuses.
        """
        until = time.monotonic() + patience_s
        while True:
            if self.silent_s() > self.max_silent_s:  # callers need not wait to learn it
                raise _unreachable("Try again later")
            try:
                with self._connection() as connection:
                    return work(connection)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if time.monotonic() > until or self._is_closing.is_set():
                    _log.error("the database of jobs does not answer: %s", _said(error))
                    raise _unreachable("Try again later") from None
                time.sleep(_RETRY_S)
            except psycopg.Error as error:
                _log.error("the database of jobs refused a statement: %s", _said(error))
                raise StorageError(
                    "The database of jobs refused a statement; the log of the server says more."
                ) from None

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        """A connection for one thread; where it fails, all idle ones are taken for broken too."""
        try:
            # `deque.pop` and `append` are atomic: threads share the idle connections without a lock, and
            # whichever thread gets one has it alone.
            connection = self._idle.pop()
        except IndexError:
            connection = psycopg.connect(**self._settings, autocommit=True)
        try:
            with self._watched(connection):
                yield connection
        except psycopg.Error:
            connection.close()
            self._close_idle()
            raise
        finally:
            if not connection.closed:
                self._idle.append(connection)

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    @contextlib.contextmanager
    def _watched(self, connection: psycopg.Connection) -> Iterator[None]:
        """Let the watcher break a connection that waits for a database which hangs."""
        with self._lock:
            # The watcher only shuts the socket of a connection in here down, and holds the lock meanwhile: a
            # thread that is done takes its connection out first, so the descriptor that is duplicated is
            # still this connection's.
            self._in_use[connection] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._in_use[connection]

    def _watch(self) -> None:
        """Break connections that wait, once leases cannot be renewed either.

        A database that hangs takes what it is sent and never answers. The operating system sees a connection
        that works, and statements have no time of their own: a large body may take long.
        """
        while not self._is_closed.wait(_RETRY_S):
            if self.silent_s() < self.max_silent_s:
                continue
            before = time.monotonic() - self.max_silent_s
            with self._lock:
                for connection, since in self._in_use.items():
                    if since < before:
                        _break(connection)

    def _do_held(self, record: JobRecord, work: Callable[[psycopg.Connection], T]) -> T:
        """Do something for a job that is held, for as long as others believe that this server lives.

        Raises:
            LeaseLostError: the database did not answer for so long.
        """
        while True:
            try:
                return self._do(work)
            except StorageError as error:
                if error.code != "jobs_database_unreachable":
                    raise
                if self.silent_s() > self.max_silent_s or self._is_closing.is_set():
                    self._release(record.id)
                    raise self._lost(record) from error

    def _lost(self, record: JobRecord) -> LeaseLostError:
        self._release(record.id)
        return LeaseLostError(f"Job {record.id} is not held by this server any more.")

    def _release(self, job_id: str) -> None:
        with self._lock:
            self._held.pop(job_id, None)

    # Leases, signals, progress and logs: on a thread and a connection of their own, so that they are never
    # behind a large body.

    def silent_s(self) -> float:
        """For how long this server could not renew its leases."""
        return time.monotonic() - self._heard_at

    @property
    def max_silent_s(self) -> float:
        """Two thirds of a lease: the rest is for stopping the jobs."""
        return 2 / 3 * self._lease_s

    def _mind(self) -> None:
        is_down = False
        while not self._is_closing.is_set():
            try:
                with (
                    psycopg.connect(**self._settings, autocommit=True) as connection,
                    self._watched(connection),
                ):
                    connection.execute(f"LISTEN {sql.CHANNEL}")
                    is_down = False
                    self._mind_with(connection)
            except psycopg.Error as error:
                if not is_down:
                    _log.warning("the database of jobs does not answer: %s", _said(error))
                is_down = True
                self._is_closing.wait(_RETRY_S)
            except ChainruleError as error:
                _log.error("jobs are not looked after: %s", error.message)
                self._is_closing.wait(_RETRY_S)

    def _mind_with(self, connection: psycopg.Connection) -> None:
        """Look after jobs until the connection breaks, or the server stops."""
        renewed_at = float("-inf")
        self._signals.work_came()  # signals were lost while there was no connection
        while not self._is_closing.is_set():
            # The time before the statement is sent, not after it: the database sets `lease_until` at a later
            # moment, so this server always believes that its leases end sooner than the database does. With L
            # the lease: renewed every L/3, given up after 2L/3 of silence, so L/3 is left to stop the jobs
            # before another server may take them.
            if time.monotonic() - renewed_at > self._lease_s / 3:
                renewed_at = time.monotonic()
                self._renew(connection)
                self._heard_at = renewed_at
                self._take_over(connection)
            self._write_news(connection)
            told = {note.payload for note in connection.notifies(timeout=_TICK_S, stop_after=1)}
            if sql.WORK in told:
                self._signals.work_came()
            for job_id in told - {sql.WORK}:
                self._signals.job_changed(job_id)

    def _renew(self, connection: psycopg.Connection) -> None:
        with self._lock:
            ids = list(self._held)
        values = {
            "ids": ids, "owner": self._owner, "lease": self._lease_s, "final": list(FINAL),
            "components": self._components,
        }  # fmt: skip
        connection.execute(sql.LIVE, values)
        renewed = {job_id for (job_id,) in connection.execute(sql.RENEW, values)} if ids else set()
        with self._lock:
            # What has been released meanwhile has come to its end.
            # The lock is not held during the statement: a thread that stores the end of a job must not wait
            # for it. So a job may end in between, and is then in neither list.
            lost = [job_id for job_id in ids if job_id not in renewed and job_id in self._held]
        for job_id in lost:
            self._release(job_id)
            self._signals.lease_lost(job_id)

    def _take_over(self, connection: psycopg.Connection) -> None:
        """End, or let wait again, the jobs of servers that have not been heard of."""
        values = {"final": list(FINAL), "stopped": server_stopped().message}
        rows = connection.execute(sql.EXPIRED, values).fetchall()
        self._unused.extend(name for _, name in rows if name is not None)

    def _write_news(self, connection: psycopg.Connection) -> None:
        """Write progress and logs, and learn which jobs are to be cancelled."""
        with self._lock:
            held = list(self._held.items())
        for _, job in held:
            record, job.progress = job.progress, None
            if record is not None:
                values = {**stored(record), "owner": self._owner}
                connection.execute(sql.REPORT, values)
            if job.log is not None:
                job.log.flush_with(connection)
        if held:
            asked = "SELECT id FROM chainrule_jobs WHERE id = ANY(%s) AND cancel_asked"
            for (job_id,) in connection.execute(asked, [[job_id for job_id, _ in held]]).fetchall():
                self._signals.cancel_asked(job_id)


class _Held:
    """A job that this server holds.

    Attributes:
        is_started: whether it may have run.
        progress: what has not been written of it.
        log: its output.
    """

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.is_started = False
        self.progress: JobRecord | None = None
        self.log: _LogParts | None = None


class _LogParts:
    """Output that is written to the database in pieces.

    Args:
        store: keeps the pieces.
        job_id: of the job.
        first: number of the first piece.
    """

    def __init__(self, store: PostgresJobStore, job_id: str, first: int) -> None:
        self._store = store
        self._job_id = job_id
        self._part = first
        self._unwritten = bytearray()
        # A piece that may have been written: where a connection breaks, that is not known. It is written
        # again as it was, since a row that is there already stays as it is (`APPEND`): bytes that were added
        # to it would be lost.
        self._piece = b""
        # Lock order: `_writing`, which is held while the database writes, then `_lock`, for a moment.
        self._lock = threading.Lock()  # of what is unwritten
        self._writing = threading.Lock()  # pieces are written one after the other

    def write(self, chunk: bytes) -> None:
        with self._lock:
            self._unwritten += chunk

    def flush(self) -> None:
        self._flush(self._store.append)

    def flush_with(self, connection: psycopg.Connection) -> None:
        """Write what there is on a connection of the caller."""

        def append(job_id: str, part: int, content: bytes) -> None:
            connection.execute(sql.APPEND, {"id": job_id, "part": part, "content": content})

        self._flush(append)

    def _flush(self, append: Callable[[str, int, bytes], None]) -> None:
        with self._writing:
            self._write_piece(append)
            with self._lock:
                self._piece, self._unwritten = bytes(self._unwritten), bytearray()
            self._write_piece(append)

    def _write_piece(self, append: Callable[[str, int, bytes], None]) -> None:
        if self._piece:
            append(self._job_id, self._part, self._piece)
            self._part += 1
            self._piece = b""


def _connection_settings(url: str) -> dict[str, Any]:
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        given = None
    # A slash or an at sign in a password ends it too early; an error about that would repeat a part of it.
    if (
        given is None
        or not _PORTS.fullmatch(str(given.get("port", "")))
        or "@" in str(given.get("dbname", ""))
    ):
        raise DefinitionError(
            "The URL of the database of jobs cannot be read; it is like "
            "postgresql://USER:PASSWORD@HOST:5432/NAME, with special characters of the password written as "
            "%40 for @, %2F for / and so on.",
            code="bad_jobs_url",
        )
    defaults = {
        "connect_timeout": _CONNECT_S,
        # A server that has gone without a word is noticed while a lease still holds.
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "application_name": "chainrule",
    }
    # Plans are not prepared on connections: a pooler may give each transaction another one.
    return {**defaults, **given, "client_encoding": "utf8", "prepare_threshold": None}


def _break(connection: psycopg.Connection) -> None:
    """Let the thread that waits for a connection find that it is broken."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as own,
    ):
        # `connection.close()` from another thread would free memory of libpq that the waiting thread uses. A
        # shutdown acts on the socket itself, so it reaches the other thread through any copy of the
        # descriptor.
        own.shutdown(socket.SHUT_RDWR)


def _said(error: psycopg.Error) -> str:
    """What the database says, in one line. libpq does not repeat passwords."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    lines = (" ".join(line.split()) for line in said.splitlines())
    return "; ".join(line for line in lines if line).rstrip(".?")


def _unreachable(reason: str) -> StorageError:
    failure = StorageError(
        f"The database of jobs does not answer. {reason}.", code="jobs_database_unreachable"
    )
    failure.http_status = 503  # type: ignore[misc]
    return failure


def _row(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row


def _record(row: Any, position: int | None = None) -> JobRecord:
    return JobRecord(**dict(zip(COLUMNS, row, strict=True)), queue_position=position)


def _jobs(connection: psycopg.Connection, where: str, *arguments: Any) -> list[JobRecord]:
    rows = connection.execute(
        f"SELECT {sql.PLACE}, {sql.FIELDS} FROM chainrule_jobs WHERE {where}", arguments
    )
    return [_record(row, position) for position, *row in rows.fetchall()]


def _waiting(connection: psycopg.Connection, component: str) -> int:
    sums = "SELECT coalesce(sum(n), 0)::bigint FROM chainrule_jobs_tally "
    sums += "WHERE component = %s AND name = 'queued'"
    return _row(connection.execute(sums, [component]))[0]


def _alone(connection: psycopg.Connection, work: Callable[[psycopg.Connection], bool]) -> bool:
    """Do a step of sweeping, unless another server sweeps; whether there may be more of it."""
    with connection.transaction():
        (is_alone,) = _row(connection.execute("SELECT pg_try_advisory_xact_lock(%s)", [_SWEEPING]))
        return is_alone and work(connection)


def _forget_servers(connection: psycopg.Connection) -> bool:
    """Forget servers that were killed."""
    connection.execute("DELETE FROM chainrule_jobs_servers WHERE alive_until < now()")
    return False


def _add_tallies(connection: psycopg.Connection) -> bool:
    """Make one row of those of connections that have ended, so that they do not become many."""
    connection.execute("""
        WITH chosen AS (
            SELECT shard, component, name FROM chainrule_jobs_tally WHERE shard <> 0 FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM chainrule_jobs_tally AS t USING chosen AS c
            WHERE (t.shard, t.component, t.name) = (c.shard, c.component, c.name)
            RETURNING t.component, t.name, t.n)
        INSERT INTO chainrule_jobs_tally AS t (shard, component, name, n)
            SELECT 0, component, name, sum(n) FROM gone GROUP BY component, name
            ON CONFLICT (shard, component, name) DO UPDATE SET n = t.n + EXCLUDED.n
        """)
    return False

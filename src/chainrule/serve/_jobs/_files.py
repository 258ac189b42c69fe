"""The jobs of one server: a SQLite database for what is known, one file each for what is large.

    <folder>/jobs.sqlite        a `JobRecord` per job, with its body and its answer where they are small
    <folder>/<id>.request       the body, until the job is over
    <folder>/<id>.result        the answer, until retention ends
    <folder>/<id>.log           what the component printed
    <folder>/lock               held by the one server that uses the folder

SQLite because a job is acknowledged only once it is safe: a row changes completely or not at all, also when
the process is killed, and there is no second server to run. The write-ahead log lets `/jobs` read while a job
finishes; `synchronous=FULL` makes an acknowledged job survive a power cut as well.

Which jobs wait is known in memory (`_Waiting`). How many there are of each state, and how large all results
are together, are counted by triggers as they change: `/metrics` asks for that again and again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError, StorageError
from chainrule._files import open_private
from chainrule.serve._jobs._objects import FolderObjects
from chainrule.serve._jobs._store import (
    COLUMNS,
    INLINE_BYTES,
    MAX_ATTEMPTS,
    RECORD_FACTOR,
    JobQueue,
    JobRecord,
    JobStore,
    LogWriter,
    Signals,
    checked_body,
    checked_result,
    chosen,
    digest_of,
    queue_full,
    server_stopped,
    stored,
)

_VERSION = 5
_INDEXED = """
CREATE INDEX jobs_by_end ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_result ON jobs (number) WHERE result_bytes IS NOT NULL;
"""
_LISTED = """
CREATE INDEX jobs_by_component ON jobs (component);
CREATE INDEX jobs_by_component_and_state ON jobs (component, state);
"""
# A row for each component and state, and for the bytes of the results of each component.
_COUNTED = """
CREATE TABLE tally
    (component TEXT, name TEXT, n INTEGER NOT NULL, PRIMARY KEY (component, name)) WITHOUT ROWID;
INSERT INTO tally SELECT component, state, COUNT(*) FROM jobs GROUP BY component, state;
INSERT INTO tally SELECT component, 'bytes', ifnull(SUM(result_bytes), 0) FROM jobs GROUP BY component;
CREATE TRIGGER job_added AFTER INSERT ON jobs BEGIN
    INSERT INTO tally VALUES (NEW.component, NEW.state, 1), (NEW.component, 'bytes', 0)
        ON CONFLICT DO UPDATE SET n = n + excluded.n;
END;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON jobs WHEN NEW.state <> OLD.state BEGIN
    INSERT INTO tally VALUES (OLD.component, OLD.state, -1), (OLD.component, NEW.state, 1)
        ON CONFLICT DO UPDATE SET n = n + excluded.n;
END;
CREATE TRIGGER result_kept AFTER UPDATE OF result_bytes ON jobs
    WHEN NEW.result_bytes IS NOT OLD.result_bytes BEGIN
    UPDATE tally SET n = n + ifnull(NEW.result_bytes, 0) - ifnull(OLD.result_bytes, 0)
        WHERE component = OLD.component AND name = 'bytes';
END;
CREATE TRIGGER job_removed AFTER DELETE ON jobs BEGIN
    UPDATE tally SET n = n - 1 WHERE component = OLD.component AND name = OLD.state;
    UPDATE tally SET n = n - ifnull(OLD.result_bytes, 0) WHERE component = OLD.component AND name = 'bytes';
END;
"""
_IDENTIFIED = """
CREATE TABLE store (id TEXT NOT NULL);
INSERT INTO store VALUES (lower(hex(randomblob(12))));
"""
_SCHEMA = f"""
CREATE TABLE jobs
    (number INTEGER PRIMARY KEY AUTOINCREMENT, request BLOB, result BLOB, {", ".join(COLUMNS)});
CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE UNIQUE INDEX jobs_by_key ON jobs (component, endpoint, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
{_INDEXED}
{_LISTED}
{_COUNTED}
{_IDENTIFIED}
PRAGMA user_version = {_VERSION};
"""
# From a version to the next one.
_MIGRATIONS = {
    1: "ALTER TABLE jobs ADD COLUMN result_digest",
    2: f"""
ALTER TABLE jobs ADD COLUMN is_idempotent DEFAULT 0;
ALTER TABLE jobs ADD COLUMN attempts DEFAULT 0;
{_INDEXED}
""",
    3: _LISTED,
    4: f"""
DROP TRIGGER IF EXISTS job_added;
DROP TRIGGER IF EXISTS job_moved;
DROP TRIGGER IF EXISTS result_kept;
DROP TRIGGER IF EXISTS job_removed;
DROP TABLE IF EXISTS tally;
{_COUNTED}
{_IDENTIFIED}
""",
}
# How many results are dropped in one step.
_BATCH = 500


class _Waiting:
    """The jobs of one component that wait, first come first served.

    A job has the number of its row, and the jobs are in order of these numbers. So a place is found by
    bisection, also after jobs in the middle have left: a list of jobs asks for many places.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._ids: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, number: int, job_id: str) -> None:
        """Let a job wait at the place of its number."""
        self._numbers.insert(bisect_left(self._numbers, number), number)
        self._ids[number] = job_id

    @property
    def first(self) -> tuple[int, str]:
        """The job that has waited longest."""
        return self._numbers[0], self._ids[self._numbers[0]]

    def remove(self, number: int) -> bool:
        """Let a job wait no longer; whether it did."""
        place = self.position(number)
        if place is None:
            return False
        del self._numbers[place], self._ids[number]
        return True

    def position(self, number: int) -> int | None:
        """How many are before a job; `None` if it does not wait."""
        return bisect_left(self._numbers, number) if number in self._ids else None


class FileJobStore(JobStore):
    """The jobs of one server, in a folder. For one thread at a time.

    Args:
        folder: where they are kept; created when it is missing.
        retention_s, max_bytes: see `JobStore`.

    Raises:
        DefinitionError: another server uses the folder (`jobs_folder_in_use`).
        StorageError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, retention_s: float, max_bytes: int) -> None:
        super().__init__(retention_s=retention_s, max_bytes=max_bytes)
        self.folder = Path(folder)
        self._files = FolderObjects(self.folder)
        self._waiting: dict[str, _Waiting] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _locked(self.folder / "lock")
            self._database = self._connect()
            (self.id,) = self._database.execute("SELECT id FROM store").fetchone()
            self._make_private()
        except StorageError:
            raise
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"Jobs cannot be kept in {self.folder}: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        path = self.folder / "jobs.sqlite"
        # SQLite gives the files beside it the mode of the database, which is private from its first byte on.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            return database
        while version in _MIGRATIONS:
            step = f"BEGIN; {_MIGRATIONS[version]}; PRAGMA user_version = {version + 1}; COMMIT;"
            database.executescript(step)
            version += 1
        if version != _VERSION:
            raise StorageError(
                f"{self.folder} was written by another version of Chainrule (format {version}); use "
                "another folder.",
                code="jobs_folder_format",
            )
        return database

    def _make_private(self) -> None:
        """Let only this user read what earlier versions, or a folder that is open to all, have left."""
        for path in self.folder.iterdir():
            is_ours = path.suffix in (".request", ".result", ".log") or "sqlite" in path.suffix
            if is_ours and path.stat().st_mode & 0o077:
                path.chmod(0o600)

    def open(self, signals: Signals, components: Collection[str]) -> None:
        """Begin with the jobs of the last server.

        A job that was running when it ended may have had effects: it is reported as failed, unless its caller
        said that it may run twice.
        """
        self._signals = signals
        may_run_again = f"is_idempotent AND attempts < {MAX_ATTEMPTS}"
        self._change(
            "UPDATE jobs SET request = NULL, state = 'failed', finished_at = ?, "
            "error_code = 'server_stopped', error_message = ? "
            f"WHERE state = 'running' AND NOT ({may_run_again})",
            time.time(),
            server_stopped().message,
        )
        queued = self._rows("WHERE state IN ('queued', 'running') ORDER BY number")
        for number, record in queued:
            self._queue(record.component).put(number, record.id)
        self._remove_left_behind({record.id for _, record in queued})

    def _remove_left_behind(self, queued: set[str]) -> None:
        """Remove what a server that was killed did not get to: half-written files, requests of no job."""
        requests = (path for path in self.folder.glob("*.request") if path.stem not in queued)
        self._files.remove(*(path.name for path in (*self.folder.glob(".*.partial"), *requests)))

    def close(self) -> None:
        """Release the folder."""
        self._database.close()
        os.close(self._lock)

    def add(self, record: JobRecord, body: Any, *, max_waiting: int) -> JobRecord:
        """Take a job on, unless one with its idempotency key is known."""
        if record.idempotency_key is not None:
            where = "WHERE component = ? AND endpoint = ? AND idempotency_key = ?"
            key = (record.component, record.endpoint, record.idempotency_key)
            for found in self._rows(where, *key):
                return self._placed(*found)
        queue = self._queue(record.component)
        if len(queue) >= max_waiting:
            raise queue_full(max_waiting)
        # The body first, then the row. A server that is killed in between leaves a file that no row names
        # (`_remove_left_behind`), never a job without its request.
        inline = self._keep(record.id, "request", [body])
        marks = ", ".join("?" * (1 + len(COLUMNS)))
        try:
            number = self._change(
                f"INSERT INTO jobs (request, {', '.join(COLUMNS)}) VALUES ({marks})",
                inline,
                *stored(record).values(),
            )
        except StorageError:
            self._files.remove(f"{record.id}.request")
            raise
        queue.put(number, record.id)
        return self._placed(number, record)

    def take(self, component: str) -> JobRecord | None:
        """Hold the job of a component that has waited longest."""
        queue = self._queue(component)
        if not queue:
            return None
        # Read before it is removed: when the database cannot be read, the job still waits and is found next
        # time. The store's one thread makes the two steps one.
        number, job_id = queue.first
        record = self.get(job_id)
        queue.remove(number)
        return record

    def withdraw(self, job_id: str) -> JobRecord | None:
        """Hold a job that waits, in order to end it."""
        for number, record in self._rows("WHERE id = ?", job_id):
            if self._queue(record.component).remove(number):
                return record
            if not record.is_final:
                self._signals.cancel_asked(job_id)
        return None

    def forget(self, job_id: str) -> bool:
        """Remove a job that waits; whether it did."""
        for number, record in self._rows("WHERE id = ?", job_id):
            if self._queue(record.component).remove(number):
                self._change("DELETE FROM jobs WHERE id = ?", job_id)
                self._files.remove(f"{job_id}.request")
                return True
        return False

    def give_back(self, record: JobRecord) -> None:
        """Let a job that is held but has not been started wait again."""
        for number, known in self._rows("WHERE id = ?", record.id):
            self._queue(known.component).put(number, known.id)

    def start(self, record: JobRecord) -> JobRecord:
        """Say that a job which is held may have run from now on."""
        started = replace(
            record, state="running", started_at=time.time(), attempts=record.attempts + 1
        )
        self._update(started)
        return started

    def finish(self, record: JobRecord, result: list[Any] | None) -> JobRecord:
        """Keep the end of a job that is held."""
        inline = None
        record = replace(record, finished_at=record.finished_at or time.time())
        if result is not None:
            inline = self._keep(record.id, "result", result)
            record = replace(record, result_digest=digest_of(result))
        # Answer, row, request: the row that says how the job ended comes after the answer is safe, and the
        # request is removed last. A server that is killed before the row is written finds the job running,
        # with its request.
        self._update(record, ", request = NULL, result = ?", inline)
        self._files.remove(f"{record.id}.request")
        return record

    def _update(self, record: JobRecord, more: str = "", *arguments: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in COLUMNS)
        values = (*stored(record).values(), *arguments, record.id)
        self._change(f"UPDATE jobs SET {names}{more} WHERE id = ?", *values)

    def get(self, job_id: str) -> JobRecord | None:
        """A job by its id."""
        return next((self._placed(*found) for found in self._rows("WHERE id = ?", job_id)), None)

    def _placed(self, number: int, record: JobRecord) -> JobRecord:
        """A job with its place in the queue."""
        return replace(record, queue_position=self._queue(record.component).position(number))

    def newest(
        self, limit: int, *, state: str | None = None, component: str | None = None
    ) -> list[JobRecord]:
        """The last jobs that were taken on, newest first: all, or those of a state or a component."""
        where, arguments = chosen("?", state=state, component=component)
        rows = self._rows(f"{where} ORDER BY number DESC LIMIT ?", *arguments.values(), limit)
        return [self._placed(*found) for found in rows]

    def let_go(self, record: JobRecord) -> None:
        """Nothing: no other server has this folder."""

    def tally(self) -> dict[tuple[str, str], int]:
        """Component and state → how many jobs."""
        rows = self._read("SELECT component, name, n FROM tally WHERE name <> 'bytes'")
        return {(component, state): n for component, state, n in rows}

    def queues(self) -> dict[str, JobQueue]:
        """Component → its jobs that wait, where there are any."""
        found = {}
        for component, waiting in self._waiting.items():
            if len(waiting):
                number, _ = waiting.first
                rows = self._read("SELECT submitted_at FROM jobs WHERE number = ?", number)
                ages = [time.time() - submitted_at for (submitted_at,) in rows]
                found[component] = JobQueue(len(waiting), max([0.0, *ages]))
        return found

    def orphans(self, components: Collection[str]) -> list[JobRecord]:
        """Withdraw the jobs of components that are not served here: no other server has this folder."""
        names = [name for name in self._waiting if name not in components]
        found = (self.take(name) for name in names for _ in range(len(self._waiting[name])))
        return [record for record in found if record is not None]

    def body(self, record: JobRecord) -> bytes:
        """The request of a job that is held."""
        return checked_body(record, self._content(record.id, "request"))

    def result(self, record: JobRecord) -> bytes | None:
        """The stored answer; `None` when it is gone."""
        return checked_result(record, self._content(record.id, "result"))

    def _content(self, job_id: str, kind: str) -> bytes | None:
        rows = self._read(f"SELECT {kind} FROM jobs WHERE id = ?", job_id)
        inline = rows[0][0] if rows else None
        return self._files.get(f"{job_id}.{kind}") if inline is None else inline

    def _keep(self, job_id: str, kind: str, pieces: list[Any]) -> bytes | None:
        """Write a body to its file, unless it is small: then it is given back, for its row."""
        if sum(memoryview(piece).nbytes for piece in pieces) <= INLINE_BYTES:
            return b"".join(pieces)
        self._files.put(f"{job_id}.{kind}", pieces)
        return None

    def log_writer(self, record: JobRecord) -> LogWriter:
        """What keeps the output of a job that is held."""
        return _LogFile(self._files.path(f"{record.id}.log"))

    def log(self, job_id: str, since: int = 0) -> bytes:
        """What a job has printed, from a byte on."""
        try:
            return (self._files.get(f"{job_id}.log") or b"")[since:]
        except StorageError:  # it is damaged: a job without a log
            return b""

    def sweep(self) -> None:
        """Drop results past their time, the oldest beyond the bound, and old jobs."""
        now = time.time()
        self._drop_results("finished_at < ?", now - self._retention_s)
        # In steps of `_BATCH` rows, each of which removes at least one result: `tally` counts exactly the
        # rows that `_drop_oldest` looks at, so the loop ends.
        while (excess := self._excess()) > 0:
            self._drop_oldest(excess)
        forgotten = now - RECORD_FACTOR * self._retention_s
        old = self._read("SELECT id FROM jobs WHERE finished_at < ?", forgotten)
        self._files.remove(*(f"{job_id}.log" for (job_id,) in old))
        self._change("DELETE FROM jobs WHERE finished_at < ?", forgotten)

    def _excess(self) -> int:
        ((total,),) = self._read("SELECT ifnull(SUM(n), 0) FROM tally WHERE name = 'bytes'")
        return total - self._max_bytes

    def _drop_oldest(self, excess: int) -> None:
        oldest = "WHERE result_bytes IS NOT NULL ORDER BY number LIMIT ?"
        sizes = self._read(f"SELECT number, result_bytes FROM jobs {oldest}", _BATCH)
        last = 0
        for number, size in sizes:
            last, excess = number, excess - size
            if excess <= 0:
                break
        self._drop_results("number <= ?", last)

    def _drop_results(self, where: str, argument: float) -> None:
        where = f"result_bytes IS NOT NULL AND {where}"
        ids = [job_id for (job_id,) in self._read(f"SELECT id FROM jobs WHERE {where}", argument)]
        self._files.remove(*(f"{job_id}.{kind}" for job_id in ids for kind in ("result", "log")))
        self._change(f"UPDATE jobs SET result = NULL, result_bytes = NULL WHERE {where}", argument)

    def _queue(self, component: str) -> _Waiting:
        return self._waiting.setdefault(component, _Waiting())

    def _rows(self, rest: str, *arguments: Any) -> list[tuple[int, JobRecord]]:
        rows = self._read(f"SELECT number, {', '.join(COLUMNS)} FROM jobs {rest}", *arguments)
        return [
            (number, JobRecord(**dict(zip(COLUMNS, values, strict=True))))
            for number, *values in rows
        ]

    def _read(self, statement: str, *arguments: Any) -> list[Any]:
        with _storage_errors():
            return self._database.execute(statement, arguments).fetchall()

    def _change(self, statement: str, *arguments: Any) -> int:
        """Run a statement that changes something; the number of the row that it inserted."""
        with _storage_errors():
            return self._database.execute(statement, arguments).lastrowid or 0


class _LogFile:
    """Output in a file, at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, chunk: bytes) -> None:
        with open(self._path, "ab", buffering=0, opener=open_private) as file:
            file.write(chunk)

    def flush(self) -> None:
        """It is in the file already."""


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The kernel releases the lock with the process, also after SIGKILL: a file with a number of a process
        # would have to be judged for being left behind.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DefinitionError(
            f"Another server keeps its jobs in {path.parent}; give this one a folder of its own.",
            code="jobs_folder_in_use",
        ) from None
    return descriptor


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"The jobs cannot be read or written: {error}.") from error

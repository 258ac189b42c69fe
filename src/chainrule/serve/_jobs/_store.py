"""Jobs on disk: a SQLite database for what is known, one file each for what is large.

    <folder>/jobs.sqlite        a `JobRecord` per job, with its body and its answer where they are small
    <folder>/<id>.request       the body, until the job is over
    <folder>/<id>.result        the answer, until retention ends
    <folder>/<id>.log           what the component printed
    <folder>/lock               held by the one server that uses the folder

SQLite because a job is acknowledged only once it is safe: a row changes completely or not at all, also when
the process is killed, and there is no second server to run. The write-ahead log lets `/jobs` read while a job
finishes; `synchronous=FULL` makes an acknowledged job survive a power cut as well. Everything here blocks, so
it runs on a thread of its own, never on the event loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import sqlite3
import time
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import xxhash

from chainrule._errors import DefinitionError, StorageError
from chainrule._files import write_whole

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
FINAL = frozenset(("succeeded", "failed", "cancelled"))


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A call that was taken on.

    Attributes:
        id: random, part of the job's address.
        component, endpoint: what is called.
        run_id: what its files and log lines are known by.
        content_type, content_encoding, accept: of the request.
        traceparent: the caller's place in its trace.
        idempotency_key: by which a caller asks again for the same job.
        body_digest: tells whether a second request with the key is the same request.
        state: where it stands. It moves forward only.
        fraction, message: what the component last said of its progress; what has succeeded is at 1.
        submitted_at, started_at, finished_at: seconds since the epoch.
        error_code, error_message: why it failed.
        result_status, result_type: of the stored answer.
        result_bytes: its size; `None` when there is none (any more).
        result_digest: tells whether what is read later is what was stored.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    component: str
    endpoint: str
    run_id: str
    content_type: str
    content_encoding: str = ""
    accept: str | None = None
    traceparent: str | None = None
    idempotency_key: str | None = None
    body_digest: str = ""
    state: State = "queued"
    fraction: float | None = None
    message: str | None = None
    submitted_at: float = field(default_factory=time.time)
    started_at: float | None = None
    finished_at: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    result_status: int | None = None
    result_type: str | None = None
    result_bytes: int | None = None
    result_digest: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in FINAL

    def to_json(self, queue_position: int | None = None) -> dict[str, Any]:
        """The job object that callers see."""
        error = None
        if self.error_code is not None:
            error = {"code": self.error_code, "message": self.error_message}
        return {
            "id": self.id,
            "component": self.component,
            "endpoint": self.endpoint,
            "run_id": self.run_id,
            "state": self.state,
            "fraction": self.fraction,
            "message": self.message,
            "queue_position": queue_position,
            "submitted_at": _iso(self.submitted_at),
            "started_at": _iso(self.started_at),
            "finished_at": _iso(self.finished_at),
            "error": error,
        }


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


_VERSION = 2
_COLUMNS = tuple(field.name for field in fields(JobRecord))
_SCHEMA = f"""
CREATE TABLE jobs
    (number INTEGER PRIMARY KEY AUTOINCREMENT, request BLOB, result BLOB, {", ".join(_COLUMNS)});
CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE UNIQUE INDEX jobs_by_key ON jobs (component, endpoint, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
PRAGMA user_version = {_VERSION};
"""
# From a version to the next one.
_MIGRATIONS = {1: "ALTER TABLE jobs ADD COLUMN result_digest"}
# Up to this size a body travels in its row: a file of its own would have to be flushed as well.
_INLINE_BYTES = 1 << 16
# A job is remembered this many times as long as its result, so that a late caller learns what became of it.
_RECORD_FACTOR = 4


class JobStore:
    """The jobs of one server. For one thread.

    Args:
        folder: where they are kept; created when it is missing.
        retention_s: how long a result is kept after its job ended.
        max_bytes: of all results together; beyond it the oldest go first.

    Raises:
        DefinitionError: another server uses the folder (`jobs_folder_in_use`).
        StorageError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, retention_s: float, max_bytes: int) -> None:
        self.folder = Path(folder)
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _locked(self.folder / "lock")
            self._database = self._open()
            self._make_private()
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"Jobs cannot be kept in {self.folder}: {error}.") from error

    def _open(self) -> sqlite3.Connection:
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

    def close(self) -> None:
        """Release the folder."""
        self._database.close()
        os.close(self._lock)

    def add(self, record: JobRecord, body: Any) -> None:
        """Take a job on. When this returns, no crash can lose it."""
        inline = self._keep(record.id, "request", [body])
        marks = ", ".join("?" * (1 + len(_COLUMNS)))
        try:
            with _storage_errors():
                self._database.execute(
                    f"INSERT INTO jobs (request, {', '.join(_COLUMNS)}) VALUES ({marks})",
                    (inline, *asdict(record).values()),
                )
        except StorageError:
            self._remove(record.id, "request")
            raise

    def update(self, record: JobRecord) -> None:
        """Keep what is known now."""
        names = ", ".join(f"{name} = ?" for name in _COLUMNS)
        with _storage_errors():
            self._database.execute(
                f"UPDATE jobs SET {names} WHERE id = ?", (*asdict(record).values(), record.id)
            )

    def finish(self, record: JobRecord, result: list[Any] | None) -> None:
        """Keep the end of a job: first the answer, then the row that says it is there."""
        inline = None
        if result is not None:
            inline = self._keep(record.id, "result", result)
            record = replace(record, result_digest=_digest_of(result))
        names = ", ".join(f"{name} = ?" for name in _COLUMNS)
        with _storage_errors():
            self._database.execute(
                f"UPDATE jobs SET request = NULL, result = ?, {names} WHERE id = ?",
                (inline, *asdict(record).values(), record.id),
            )
        self._remove(record.id, "request")

    def get(self, job_id: str) -> JobRecord | None:
        """A job by its id."""
        return next(self._select("WHERE id = ?", job_id), None)

    def with_key(self, component: str, endpoint: str, key: str) -> JobRecord | None:
        """A job by its idempotency key."""
        where = "WHERE component = ? AND endpoint = ? AND idempotency_key = ?"
        return next(self._select(where, component, endpoint, key), None)

    def newest(self, state: str | None, limit: int) -> list[JobRecord]:
        """The last jobs that were taken on, newest first."""
        where = "" if state is None else "WHERE state = ?"
        arguments = () if state is None else (state,)
        return list(self._select(f"{where} ORDER BY number DESC LIMIT ?", *arguments, limit))

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with _storage_errors():
            found = self._database.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state")
            counts: dict[str, int] = dict.fromkeys(STATES, 0)
            return counts | dict(found.fetchall())

    def recover(self) -> list[JobRecord]:
        """The jobs that still have to run, oldest first.

        A job that was running when the last server ended may have had effects: it is not run again, but
        reported as failed.
        """
        with _storage_errors():
            self._database.execute(
                "UPDATE jobs SET state = 'failed', finished_at = ?, error_code = 'server_stopped', "
                "error_message = ? WHERE state = 'running'",
                (
                    time.time(),
                    "The server ended while this job was running. It is not run again unasked, because "
                    "it may have had effects; submit it again if that is safe.",
                ),
            )
        queued = list(self._select("WHERE state = 'queued' ORDER BY number"))
        self._remove_left_behind({record.id for record in queued})
        return queued

    def _remove_left_behind(self, queued: set[str]) -> None:
        """Remove what a server that was killed did not get to: half-written files, requests of no job."""
        requests = (path for path in self.folder.glob("*.request") if path.stem not in queued)
        for path in (*self.folder.glob(".*.partial"), *requests):
            with contextlib.suppress(OSError):  # it keeps no job from running
                path.unlink()

    def body(self, record: JobRecord) -> bytes:
        """The request of a job that is not over.

        Raises:
            StorageError: it is gone (`job_request_lost`), or is not what was stored
                (`job_request_damaged`).
        """
        content = self._read(record.id, "request")
        if content is None:
            raise StorageError(
                "The request of this job is gone from the folder of jobs; submit it again.",
                code="job_request_lost",
            )
        if body_digest(content) != record.body_digest:
            raise StorageError(
                "The request of this job was changed on disk and is not run; submit it again.",
                code="job_request_damaged",
            )
        return content

    def result(self, record: JobRecord) -> bytes | None:
        """The stored answer; `None` when it is gone.

        Raises:
            StorageError: it is not what was stored (`job_result_damaged`).
        """
        content = self._read(record.id, "result")
        if content is None or record.result_digest in (None, _digest_of([content])):
            return content
        raise damaged_result()

    def _read(self, job_id: str, kind: str) -> bytes | None:
        inline = self._inline(job_id, kind)
        if inline is not None:
            return inline
        with _storage_errors(), contextlib.suppress(FileNotFoundError):
            return self._path(job_id, kind).read_bytes()
        return None

    def _keep(self, job_id: str, kind: str, pieces: list[Any]) -> bytes | None:
        """Write a body to its file, unless it is small: then it is given back, for its row."""
        if sum(memoryview(piece).nbytes for piece in pieces) <= _INLINE_BYTES:
            return b"".join(pieces)
        _write(self._path(job_id, kind), pieces)
        return None

    def _inline(self, job_id: str, kind: str) -> bytes | None:
        with _storage_errors():
            row = self._database.execute(
                f"SELECT {kind} FROM jobs WHERE id = ?", (job_id,)
            ).fetchone()
        return None if row is None else row[0]

    def log_path(self, job_id: str) -> Path:
        """Where the output of a job is."""
        return self._path(job_id, "log")

    def sweep(self) -> None:
        """Drop results past their time, the oldest beyond the bound, and old jobs."""
        now = time.time()
        self._drop_results("finished_at < ?", now - self._retention_s)
        excess = "SELECT number FROM (SELECT number, SUM(result_bytes) OVER (ORDER BY number DESC) AS total "
        excess += "FROM jobs WHERE result_bytes IS NOT NULL) WHERE total > ?"
        self._drop_results(f"number IN ({excess})", self._max_bytes)
        forgotten = now - _RECORD_FACTOR * self._retention_s
        for record in self._select("WHERE finished_at < ?", forgotten):
            self._remove(record.id, "log")
        with _storage_errors():
            self._database.execute("DELETE FROM jobs WHERE finished_at < ?", (forgotten,))

    def _drop_results(self, where: str, argument: float) -> None:
        expired = list(self._select(f"WHERE result_bytes IS NOT NULL AND {where}", argument))
        for record in expired:
            self._remove(record.id, "result")
            self._remove(record.id, "log")
        with _storage_errors():
            self._database.executemany(
                "UPDATE jobs SET result = NULL, result_bytes = NULL WHERE id = ?",
                [(record.id,) for record in expired],
            )

    def _select(self, rest: str, *arguments: Any) -> Any:
        with _storage_errors():
            rows = self._database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM jobs {rest}", arguments
            ).fetchall()
        return (JobRecord(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)

    def _path(self, job_id: str, kind: str) -> Path:
        return self.folder / f"{job_id}.{kind}"

    def _remove(self, job_id: str, kind: str) -> None:
        with contextlib.suppress(OSError):
            self._path(job_id, kind).unlink()


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DefinitionError(
            f"Another server keeps its jobs in {path.parent}; give this one a folder of its own.",
            code="jobs_folder_in_use",
        ) from None
    return descriptor


def body_digest(body: Any) -> str:
    """Tells requests apart, also where a caller would like two of them to be taken for the same."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _digest_of(pieces: list[Any]) -> str:
    """Tells whether bytes have changed by accident; ten times as fast."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def damaged_result() -> StorageError:
    """What is stored of an answer is not what the component gave."""
    return StorageError(
        "The stored answer of this job was changed on disk and cannot be given out; submit the job again.",
        code="job_result_damaged",
    )


def _write(path: Path, pieces: list[Any]) -> None:
    try:
        write_whole(path, pieces, durable=True, private=True)
    except OSError as error:
        raise StorageError(f"A job cannot be kept: {error.strerror}.") from error


@contextlib.contextmanager
def _storage_errors() -> Any:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"The jobs cannot be read or written: {error}.") from error

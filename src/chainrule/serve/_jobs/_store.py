"""What a job is, and what a store of jobs promises (`JobStore`).

A server asks its store for work, tells it what becomes of that work, and answers callers from it. There are
two stores: `FileJobStore` for one server, and `PostgresJobStore` for several that share their jobs.

A job is *waiting* until a server takes it. It is *held* by this server until it is over: the server may first
have to wait for a free worker, and the state is still `queued`. `start` says that the component may have
run from now on. Of a server that ended, the jobs that were held but not started wait again; those that were
started have failed, unless their caller said that they may run twice.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Protocol

import xxhash

from chainrule._errors import ChainruleError, StorageError
from chainrule.serve._calls import CallError

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
        is_idempotent: whether the caller says that the call may run twice.
        attempts: how often it was started.
        state: where it stands. It moves forward only.
        fraction, message: what the component last said of its progress; what has succeeded is at 1.
        submitted_at, started_at, finished_at: seconds since the epoch, by the clock of the store.
        error_code, error_message: why it failed.
        result_status, result_type: of the stored answer.
        result_bytes: its size; `None` when there is none (any more).
        result_digest: tells whether what is read later is what was stored.
        queue_position: how many jobs are before it. Not stored, but counted when the record is read.
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
    is_idempotent: bool = False
    attempts: int = 0
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
    queue_position: int | None = field(default=None, compare=False)

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in FINAL

    def to_json(self) -> dict[str, Any]:
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
            "queue_position": (self.queue_position or 0) if self.state == "queued" else None,
            "submitted_at": _iso(self.submitted_at),
            "started_at": _iso(self.started_at),
            "finished_at": _iso(self.finished_at),
            "error": error,
        }


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


COLUMNS = tuple(field.name for field in fields(JobRecord) if field.name != "queue_position")
"""The attributes of a record that are stored, in the order in which stores keep them."""

INLINE_BYTES = 1 << 16
"""Up to this size a body travels in its row: on its own it would have to be flushed to the disk as well."""

RECORD_FACTOR = 4
"""A job is remembered this many times as long as its result: a late caller learns what became of it."""

MAX_ATTEMPTS = 3
"""How often a job may be started that may run twice: it may be what ends the servers."""


class JobQueue(NamedTuple):
    """The jobs of one component that wait.

    Attributes:
        waiting: how many.
        oldest_s: for how long the first of them has waited.
        servers: how many servers run jobs of this component.
    """

    waiting: int
    oldest_s: float
    servers: int = 1

    @property
    def share(self) -> float:
        """How many of them are this server's, where all servers take the same number."""
        return self.waiting / self.servers


class LeaseLostError(ChainruleError):
    """This server may not go on with a job: another one ends it, or runs it."""

    default_code = "job_lease_lost"


class Signals(Protocol):
    """What a store tells its server, from any thread."""

    def work_came(self) -> None:
        """There may be jobs that wait."""

    def job_changed(self, job_id: str) -> None:
        """There is news of a job that another server holds."""

    def cancel_asked(self, job_id: str) -> None:
        """A caller wants a job ended that this server holds."""

    def lease_lost(self, job_id: str) -> None:
        """This server does not hold a job any more, and has to stop it."""


class LogWriter(Protocol):
    """Keeps the output of one attempt of a job."""

    def write(self, chunk: bytes) -> None:
        """Add some output; an `OSError` loses it."""

    def flush(self) -> None:
        """Let everything be read that was written."""


class JobStore(ABC):
    """Where jobs are kept. Everything here blocks: it runs on threads, never on the event loop.

    Args:
        retention_s: how long a result is kept after its job ended.
        max_bytes: of all results together; beyond it the oldest go first.

    Attributes:
        threads: how many may call the methods at the same time.
        is_shared: whether other servers have the same jobs.
        poll_s: how often to look for work and for news of a job when no signal comes.
        id: random, kept with the jobs. By it a caller tells whether a server, or the one that came in its
            place, knows the idempotency keys that another server was given.
    """

    threads = 1
    is_shared = False
    poll_s: float | None = None
    id: str

    def __init__(self, *, retention_s: float, max_bytes: int) -> None:
        self._retention_s = retention_s
        self._max_bytes = max_bytes

    @abstractmethod
    def open(self, signals: Signals, components: Collection[str]) -> None:
        """Begin: from now on there are signals, and the jobs of servers that ended are looked after.

        Args:
            signals: what the store tells its server.
            components: whose jobs this server runs.
        """

    @abstractmethod
    def close(self) -> None:
        """End; the jobs that this server holds are the next one's."""

    @abstractmethod
    def add(self, record: JobRecord, body: Any, *, max_waiting: int) -> JobRecord:
        """Take a job on, unless one with its idempotency key is known. No crash can lose it after this.

        Returns:
            The job, or the one with the same key.

        Raises:
            CallError: too many jobs of its component wait (`queue_full`).
        """

    @abstractmethod
    def take(self, component: str) -> JobRecord | None:
        """Hold the job of a component that has waited longest; `None` when none waits."""

    @abstractmethod
    def withdraw(self, job_id: str) -> JobRecord | None:
        """Hold a job that waits, in order to end it.

        Where a server holds it already, this server is told to end it, and `None` is returned.
        """

    @abstractmethod
    def forget(self, job_id: str) -> bool:
        """Remove a job that waits, of which no caller was told; whether it waited. Others are left alone."""

    @abstractmethod
    def give_back(self, record: JobRecord) -> None:
        """Let a job that is held but has not been started wait again, at its old place."""

    @abstractmethod
    def start(self, record: JobRecord) -> JobRecord:
        """Say that a job which is held may have run from now on.

        Raises:
            LeaseLostError: it is not held any more, and must not run.
        """

    @abstractmethod
    def finish(self, record: JobRecord, result: list[Any] | None) -> JobRecord:
        """Keep the end of a job that is held, once: first the answer, then that it is there.

        Raises:
            LeaseLostError: it is not held any more, and its end is what another server says.
        """

    def report(self, record: JobRecord) -> None:  # noqa: B027 - a store for one server has nothing to do
        """The component said how far along it is; returns at once, also on the event loop."""

    @abstractmethod
    def body(self, record: JobRecord) -> bytes:
        """The request of a job that is held.

        Raises:
            StorageError: it is gone (`job_request_lost`), or is not what was stored (`job_request_damaged`).
        """

    @abstractmethod
    def get(self, job_id: str) -> JobRecord | None:
        """A job by its id."""

    @abstractmethod
    def newest(
        self, limit: int, *, state: str | None = None, component: str | None = None
    ) -> list[JobRecord]:
        """The last jobs that were taken on, newest first: all, or those of a state or a component."""

    @abstractmethod
    def tally(self) -> dict[tuple[str, str], int]:
        """Component and state → how many jobs; costs the same for any number of jobs."""

    def counts(self) -> dict[str, int]:
        """How many jobs of all components are in each state."""
        return counted(self.tally())

    @abstractmethod
    def queues(self) -> dict[str, JobQueue]:
        """Component → its jobs that wait, where there are any."""

    @abstractmethod
    def result(self, record: JobRecord) -> bytes | None:
        """The stored answer; `None` when it is gone.

        Raises:
            StorageError: it is not what was stored (`job_result_damaged`).
        """

    @abstractmethod
    def log_writer(self, record: JobRecord) -> LogWriter:
        """What keeps the output of a job that is held."""

    @abstractmethod
    def log(self, job_id: str, since: int = 0) -> bytes:
        """What a job has printed, from a byte on."""

    def orphans(self, components: Collection[str]) -> list[JobRecord]:
        """Withdraw the jobs of components that no server serves, where that is known."""
        return []

    @abstractmethod
    def let_go(self, record: JobRecord) -> None:
        """Hold a job no longer that this server has stopped: it is another server's after its lease."""

    def silent_s(self) -> float:
        """For how long this server could not say that it lives."""
        return 0.0

    @property
    def max_silent_s(self) -> float:
        """How long this server may be silent before it has to stop its jobs."""
        return float("inf")

    @abstractmethod
    def sweep(self) -> None:
        """Drop results past their time, the oldest beyond the bound, and old jobs."""


def counted(tally: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """State → how many jobs of all components."""
    found: dict[str, int] = dict.fromkeys(STATES, 0)
    for (_, state), count in tally.items():
        found[state] += count
    return found


def chosen(mark: str, **wanted: str | None) -> tuple[str, dict[str, str]]:
    """The condition of a statement that lists jobs, and its values; what is `None` does not matter.

    Args:
        mark: of a value in the statement; `{}` in it is the name.
        wanted: column → its value.
    """
    given = {name: storable(value) for name, value in wanted.items() if value is not None}
    where = " AND ".join(f"{name} = {mark.format(name)}" for name in given)
    return f"WHERE {where}" if given else "", given


def stored(record: JobRecord) -> dict[str, Any]:
    """The attributes of a record that are stored; what an author says may hold what no database keeps."""
    values = asdict(record)
    return {
        name: storable(values[name]) if isinstance(values[name], str) else values[name]
        for name in COLUMNS
    }


def storable(text: str) -> str:
    """Text without NUL and without halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def server_stopped() -> CallError:
    """The error of a job that was running when its server ended."""
    return CallError(
        "The server ended while this job was running. It is not run again unasked, because it may have had "
        "effects. Submit it again if it may run twice; with idempotent=True, servers do that themselves.",
        code="server_stopped",
        status=503,
    )


def queue_full(max_waiting: int) -> CallError:
    """The error of a job for which there is no place."""
    return CallError.unavailable(f"{max_waiting} jobs wait already.", "queue_full", 5)


def body_digest(body: Any) -> str:
    """Tells requests apart, also where a caller would like two of them to be taken for the same."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def digest_of(pieces: list[Any]) -> str:
    """Tells whether bytes have changed by accident; ten times as fast."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def checked_body(record: JobRecord, content: bytes | None) -> bytes:
    """The stored request of a job, if it is what was stored.

    Raises:
        StorageError: it is not.
    """
    if content is None:
        raise StorageError(
            "The request of this job is gone from where jobs are kept; submit it again.",
            code="job_request_lost",
        )
    if body_digest(content) != record.body_digest:
        raise StorageError(
            "The request of this job was changed on disk and is not run; submit it again.",
            code="job_request_damaged",
        )
    return content


def checked_result(record: JobRecord, content: bytes | None) -> bytes | None:
    """The stored answer of a job, if it is what was stored.

    Raises:
        StorageError: it is not (`job_result_damaged`).
    """
    if content is None or record.result_digest in (None, digest_of([content])):
        return content
    raise damaged_result()


def damaged_result() -> StorageError:
    """What is stored of an answer is not what the component gave."""
    return StorageError(
        "The stored answer of this job was changed on disk and cannot be given out; submit the job again.",
        code="job_result_damaged",
    )

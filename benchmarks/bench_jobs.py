"""Stores of jobs: what a job costs in files and in a database, among a thousand jobs and among 100 000.

Times are of the clock: what a store waits for, the disk, is the cost. The database is one of this machine.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.serve.postgres_server import PostgresServer, binaries

from benchmarks._harness import Row, show
from chainrule.serve._jobs._files import FileJobStore
from chainrule.serve._jobs._postgres import PostgresJobStore
from chainrule.serve._jobs._store import JobRecord, JobStore, body_digest

_SIZES = (1_000, 10_000, 100_000)
_MEASURED = 200
_BODY = b'{"inputs": {"x": 1.0}}'
_BLANK = JobRecord(
    component="c", endpoint="apply", run_id="r", content_type="t", body_digest=body_digest(_BODY)
)
_KEEP: dict[str, Any] = {"retention_s": 1e9, "max_bytes": 1 << 40}


def run() -> list[Row]:
    kinds = {"files": _in_files}
    if binaries() is not None:
        kinds["PostgreSQL"] = _in_database
    return [row for kind, opened in kinds.items() for row in _rows(kind, opened)]


def _rows(kind: str, opened: Callable[[int], Any]) -> list[Row]:
    found: dict[str, dict[int, float]] = {}
    for size in _SIZES:
        with opened(size) as store:
            for step, seconds in _steps(store).items():
                found.setdefault(step, {})[size] = seconds
    return [
        Row(
            f"{kind}: {step}, among 100 000 jobs",
            times[_SIZES[-1]],
            times[_SIZES[0]],
            "among 1000",
            bar=3.0,
            note=", ".join(f"{1e3 * s:.2f} ms (n = {n:,})" for n, s in times.items()),
        )
        for step, times in found.items()
    ]


def _steps(store: JobStore) -> dict[str, float]:
    """Seconds for each step of a job."""
    held: list[JobRecord] = []

    def add() -> None:
        store.add(replace(_BLANK, id=f"{time.perf_counter_ns():x}"), _BODY, max_waiting=10**9)

    def take() -> None:
        job = store.take("c")
        assert job is not None
        held.append(store.start(job))

    def finish() -> None:
        job = replace(held.pop(), state="succeeded", result_status=200, result_bytes=len(_BODY))
        store.finish(job, [_BODY])

    steps = {"add": add, "take and start": take, "finish": finish, "count": store.counts}
    steps["sweep"] = store.sweep
    return {name: _mean_s(step) for name, step in steps.items()}


def _mean_s(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(_MEASURED):
        step()
    return (time.perf_counter() - start) / _MEASURED


class _Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


# As many jobs as are asked for, of which a tenth waits.


@contextlib.contextmanager
def _in_files(size: int) -> Iterator[JobStore]:
    with tempfile.TemporaryDirectory() as folder:
        store = FileJobStore(Path(folder), **_KEEP)
        columns = "id, component, endpoint, run_id, content_type, state, submitted_at, finished_at"
        store._database.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {size}) "
            f"INSERT INTO jobs ({columns}, is_idempotent, attempts) "
            "SELECT 'old' || i, 'other', 'apply', 'r', 't', iif(i % 10, 'succeeded', 'queued'), i, "
            "iif(i % 10, 2e9, NULL), 0, 0 FROM n"
        )
        store.open(_Silent(), ["c"])
        yield store
        store.close()


@contextlib.contextmanager
def _in_database(size: int) -> Iterator[JobStore]:
    server = PostgresServer(durable=True)
    store = PostgresJobStore(server.url, objects=None, lease_s=3600, **_KEEP)
    columns = "id, component, endpoint, run_id, content_type, state, submitted_at, finished_at"
    server.execute(
        f"WITH job AS (INSERT INTO chainrule_jobs ({columns}, is_idempotent, attempts) "
        "SELECT 'old' || i, 'other', 'apply', 'r', 't', "
        "CASE WHEN i % 10 > 0 THEN 'succeeded' ELSE 'queued' END, i, "
        f"CASE WHEN i % 10 > 0 THEN 2e9 END, false, 0 FROM generate_series(1, {size}) AS i "
        "RETURNING component, number, state) INSERT INTO chainrule_jobs_waiting "
        "SELECT component, number FROM job WHERE state = 'queued'"
    )
    server.execute("VACUUM ANALYZE")
    # Jobs that come one by one leave the tally at a page or two. This one statement leaves a version of a row
    # for each of its jobs, and pages which only a rewrite gives back.
    server.execute("VACUUM FULL chainrule_jobs_tally")
    store.open(_Silent(), ["c"])
    yield store
    store.close()
    server.remove()


if __name__ == "__main__":
    show(run())

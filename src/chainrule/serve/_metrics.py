"""Where a server shows what its pools have counted: `/ready`, `/status` and `/metrics`.

The routes answer while all workers are busy. The text for Prometheus is written here rather than by
`prometheus_client`, so that a server needs no further package; the tests read it with
`prometheus_client.parser`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from chainrule import __version__
from chainrule.serve._jobs._store import STATES, counted
from chainrule.serve._pool import BOUNDS_S, OUTCOMES, EndpointMetrics, Service

if TYPE_CHECKING:
    from chainrule.serve._app import Server
    from chainrule.serve._jobs import Jobs
    from chainrule.serve._jobs._store import JobQueue
    from chainrule.serve._security import Accounts


def percentiles(seconds: list[float]) -> dict[str, float | None]:
    """The median and the slow end of some latencies."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99)}


Sample = tuple[str, Mapping[str, object], float]


def exposition(
    server: Server,
    jobs: Mapping[tuple[str, str], int] | None,
    queues: Mapping[str, JobQueue] | None,
) -> str:
    """All metrics of a server.

    Args:
        server: the server.
        jobs: component and state → how many jobs; `None` while that is not known.
        queues: component → its jobs that wait, where there are any; `None` while that is not known.
    """
    named = list(server.services.items())
    draining: list[Sample] = [("", {}, int(server.is_draining))]
    lines = [
        *_request_families(named),
        *_worker_families(named),
        *_job_families(named, jobs, queues),
        *_family("draining", "gauge", "1 if the server is about to stop.", draining),
    ]
    for name, kind, help, count in _FILES:
        suffix = "_total" if kind == "counter" else ""
        files = [(suffix, {"files": files.name}, count(files)) for files in server.watched]
        lines += _family(name, kind, help, files)
    if server.accounts is not None:
        lines += _account_families(server.accounts)
    return "\n".join(lines) + "\n"


Named = Sequence[tuple[str, Service]]
"""Names of components in URLs, and the components."""


def _request_families(named: Named) -> Iterator[str]:
    """What passed through the components."""
    yield from _family("requests", "counter", "Requests that are over.", _requests(named))
    yield from _family(
        "request_duration_seconds", "histogram", "From the queue to the answer.", _durations(named)
    )
    for name, direction, help in (
        ("received_bytes", "received", "Bodies of requests."),
        ("sent_bytes", "sent", "Bodies of answers."),
    ):
        yield from _family(name, "counter", help, _bytes(named, direction))
    for outcome in OUTCOMES:
        samples = [
            ("_total", {"component": name}, service.pool.metrics.outcomes[outcome])
            for name, service in named
        ]
        yield from _family(f"calls_{outcome}", "counter", f"Calls that were {outcome}.", samples)
    for name, help, value in _GAUGES:
        gauges = [("", {"component": c}, value(service)) for c, service in named]
        yield from _family(name, "gauge", help, gauges)
    for kind, help in _REUSE.items():
        reuse = [
            (
                "_total",
                {"component": name, "outcome": outcome},
                service.pool.metrics.reuse[f"{kind}_{outcome}"],
            )
            for name, service in named
            for outcome in ("hit", "miss")
        ]
        yield from _family(f"{kind}_reuse", "counter", help, reuse)


def _worker_families(named: Named) -> Iterator[str]:
    """What runs the components."""
    workers = [
        ({"component": name, "worker": worker.id}, worker)
        for name, service in named
        for worker in service.pool.workers
    ]
    restarts = [("_total", labels, worker.restarts) for labels, worker in workers]
    yield from _family("worker_restarts", "counter", "Workers that were replaced.", restarts)
    memory = [
        ("", labels, worker.device_bytes)
        for labels, worker in workers
        if worker.device_bytes is not None
    ]
    help = "Memory of a GPU that a worker had after its last call."
    yield from _family("worker_device_bytes", "gauge", help, memory)
    about = [
        ("", {"component": name, "version": service.facts.version, "server": __version__}, 1)
        for name, service in named
    ]
    yield from _family("component_info", "gauge", "Versions of component and server.", about)


def _job_families(
    named: Named,
    jobs: Mapping[tuple[str, str], int] | None,
    queues: Mapping[str, JobQueue] | None,
) -> Iterator[str]:
    """The jobs of the components, and the load that they are; arguments as of `exposition`."""
    is_known: list[Sample] = [("", {}, int(jobs is not None and queues is not None))]
    help = "0 while the database or the folder of jobs does not answer; their numbers are left out then."
    yield from _family("jobs_store_up", "gauge", help, is_known)
    yield from _family("jobs", "gauge", "Jobs that are known, by state.", _states(named, jobs))
    shares = {name: queue.share for name, queue in (queues or {}).items()}
    waits = [] if queues is None else [({"component": n}, queues.get(n)) for n, _ in named]
    waiting = [("", labels, queue.waiting if queue else 0) for labels, queue in waits]
    yield from _family("jobs_waiting", "gauge", "Jobs that wait for a worker.", waiting)
    load = [("", {"component": name}, s.pool.under_way + shares.get(name, 0)) for name, s in named]
    help = "Calls that run or wait, and this server's share of the jobs that wait."
    yield from _family("load", "gauge", help, load)
    oldest = [("", labels, queue.oldest_s if queue else 0) for labels, queue in waits]
    help = "For how long the first of the jobs that wait has waited."
    yield from _family("jobs_oldest_waiting_seconds", "gauge", help, oldest)


def _account_families(accounts: Accounts) -> Iterator[str]:
    """What the holders of tokens have used, by the names in the token file."""
    for name, kind, help, count in _ACCOUNTS:
        suffix = "_total" if kind == "counter" else ""
        samples = [(suffix, {"token": each.holder.name}, count(each)) for each in accounts]
        yield from _family(
            name, kind, help, [sample for sample in samples if sample[2] is not None]
        )
    limited = [
        ("_total", {"token": each.holder.name, "limit": limit}, count)
        for each in accounts
        for limit, count in each.refused.items()
    ]
    yield from _family(
        "token_limited", "counter", "Requests beyond a limit of their token.", limited
    )
    unknown: list[Sample] = [("_total", {}, accounts.refused)]
    yield from _family("unauthorized", "counter", "Requests without a valid token.", unknown)


_FILES: tuple[Any, ...] = (
    ("files_loaded", "counter", "Changes of files that were read.", lambda files: files.loaded),
    ("files_failed", "counter", "Changes of files that cannot be used.", lambda files: files.failed),
    ("files_current", "gauge", "0 if what is in force is not what the files say.",
     lambda files: int(files.is_current)),
)  # fmt: skip
_ACCOUNTS: tuple[Any, ...] = (
    ("token_requests", "counter", "Requests with a token.", lambda account: account.requests),
    ("token_calls_running", "gauge", "Calls with a token that are under way.",
     lambda account: account.running),
    ("token_rate_limit", "gauge", "Requests per second that a token may make.",
     lambda account: account.holder.rate),
    ("token_calls_limit", "gauge", "Calls with a token that may be under way.",
     lambda account: account.holder.calls),
)  # fmt: skip


_GAUGES: tuple[Any, ...] = (
    (
        "calls_running",
        "Calls that a worker computes.",
        lambda s: s.pool.under_way - s.pool.queue_length,
    ),
    ("calls_waiting", "Calls that wait for a worker.", lambda s: s.pool.queue_length),
    ("queue_limit", "Calls that may wait for a worker.", lambda s: s.pool.max_queue),
    ("workers", "Workers that are up.", lambda s: s.pool.alive),
    ("ready", "1 if the component answers calls.", lambda s: int(s.pool.is_ready)),
)


_REUSE = {
    "results": "Requests whose result may be kept (--cache), by whether it was.",
    "residuals": "Derivatives that look for what a forward pass has left, by whether it was there.",
}


def _states(named: Named, jobs: Mapping[tuple[str, str], int] | None) -> Iterator[Sample]:
    """The states of what is served here, and of what other servers have in the same database."""
    if jobs is None:
        return
    known = {(name, state): 0 for name, _ in named for state in STATES}
    for (component, state), count in (known | dict(jobs)).items():
        yield "", {"component": component, "state": state}, count


def _requests(named: Named) -> Iterator[Sample]:
    for labels, entry in _endpoints(named):
        for status, count in entry.statuses.items():
            yield "_total", {**labels, "status": status}, count


def _durations(named: Named) -> Iterator[Sample]:
    for labels, entry in _endpoints(named):
        for bound, count in zip((*BOUNDS_S, "+Inf"), accumulate(entry.buckets), strict=True):
            yield "_bucket", {**labels, "le": bound}, count
        yield "_count", labels, sum(entry.buckets)
        yield "_sum", labels, entry.seconds


def _bytes(named: Named, direction: str) -> Iterator[Sample]:
    for labels, entry in _endpoints(named):
        yield "_total", labels, getattr(entry, direction)


def _endpoints(
    named: Named,
) -> Iterator[tuple[dict[str, object], EndpointMetrics]]:
    for name, service in named:
        for endpoint, entry in service.pool.metrics.endpoints.items():
            yield {"component": name, "endpoint": endpoint}, entry


def _family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> Iterator[str]:
    full = f"chainrule_{name}"
    declared = f"{full}_total" if kind == "counter" else full
    yield f"# HELP {declared} {help}"
    yield f"# TYPE {declared} {kind}"
    for suffix, labels, value in samples:
        text = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        yield f"{full}{suffix}{{{text}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_RATE_WINDOW_S = 10.0


def status_routes(server: Server, jobs: Jobs) -> list[Route]:
    """The routes that tell how the server is."""
    started, services = time.monotonic(), server.services

    async def ready(request: Request) -> Response:
        states = {name: _state(service) for name, service in services.items()}
        is_ready = all(state["ready"] for state in states.values()) and not server.is_draining
        word = "draining" if server.is_draining else "ready" if is_ready else "degraded"
        content = {"status": word, "components": states}
        return JSONResponse(content, status_code=200 if is_ready else 503)

    async def status(request: Request) -> Response:
        tally = await jobs.tally()
        content = {
            "version": __version__,
            "uptime_s": time.monotonic() - started,
            **_load(services),
            "jobs": {} if tally is None else counted(tally),
        }
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    async def metrics(request: Request) -> Response:
        text = exposition(server, await jobs.tally(), await jobs.queues())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return [
        Route("/ready", ready, methods=["GET"]),
        Route("/status", status, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _state(service: Service) -> dict[str, object]:
    pool = service.pool
    return {"ready": pool.is_ready, "workers": pool.alive, "queue": pool.queue_length}


def _load(services: Mapping[str, Service]) -> dict[str, Any]:
    pools = [service.pool for service in services.values()]
    metrics = [pool.metrics for pool in pools]
    now = time.perf_counter()
    recent = [entry for counted in metrics for entry in counted.recent]
    lately = [ended for ended, _ in recent if now - ended <= _RATE_WINDOW_S]
    return {
        "components": [_facts(service) for service in services.values()],
        "workers": [
            {**worker._asdict(), "component": name}
            for name, service in services.items()
            for worker in service.pool.workers
        ],
        "queue": {
            "length": sum(pool.queue_length for pool in pools),
            "limit": sum(pool.max_queue for pool in pools),
        },
        "requests": {
            "total": sum(counted.total for counted in metrics),
            "errors": sum(counted.errors for counted in metrics),
            "in_flight": sum(pool.under_way for pool in pools),
            "per_second": len(lately) / _RATE_WINDOW_S,
        },
        "latency_s": percentiles([seconds for _, seconds in recent]),
    }


def _facts(service: Service) -> dict[str, Any]:
    facts = service.facts
    return {
        "name": service.name,
        "version": facts.version,
        "hash": facts.content_hash,
        "endpoints": facts.endpoints,
    }

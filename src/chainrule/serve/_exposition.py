"""The text that Prometheus scrapes.

Written here rather than by `prometheus_client`: the numbers are plain integers that the event loop counts
anyway, so a request costs no lock and a server needs no further package. The tests read the text with
`prometheus_client.parser`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from chainrule.serve._service import Service
from chainrule.serve._traffic import BOUNDS_S, EndpointTraffic

Sample = tuple[str, Mapping[str, object], float]


def exposition(services: Mapping[str, Service], jobs: Mapping[str, int]) -> str:
    """All metrics of a server."""
    named = list(services.items())
    lines: list[str] = []
    lines += _family("requests", "counter", "Requests that are over.", _requests(named))
    lines += _family(
        "request_duration_seconds", "histogram", "From the queue to the answer.", _durations(named)
    )
    lines += _family("received_bytes", "counter", "Bodies of requests.", _bytes(named, "received"))
    lines += _family("sent_bytes", "counter", "Bodies of answers.", _bytes(named, "sent"))
    for outcome in ("answered", "crashed", "timed_out", "cancelled", "turned_away"):
        samples = [
            ("_total", {"component": name}, asdict(service.pool.counters)[outcome])
            for name, service in named
        ]
        lines += _family(f"calls_{outcome}", "counter", f"Calls that were {outcome}.", samples)
    for name, help, value in _GAUGES:
        samples = [("", {"component": c}, value(service)) for c, service in named]
        lines += _family(name, "gauge", help, samples)
    restarts = [
        ("_total", {"component": name, "worker": worker.id}, worker.restarts)
        for name, service in named
        for worker in service.pool.workers
    ]
    lines += _family("worker_restarts", "counter", "Workers that were replaced.", restarts)
    states = [("", {"state": state}, count) for state, count in jobs.items()]
    lines += _family("jobs", "gauge", "Jobs that are known, by state.", states)
    return "\n".join(lines) + "\n"


_GAUGES: tuple[Any, ...] = (
    ("calls_running", "Calls that a worker computes.", lambda s: s.pool.counters.running),
    ("calls_waiting", "Calls that wait for a worker.", lambda s: s.pool.queue_length),
    ("workers", "Workers that are up.", lambda s: s.pool.alive),
)


def _requests(named: Iterable[tuple[str, Service]]) -> Iterator[Sample]:
    for labels, entry in _endpoints(named):
        for status, count in entry.statuses.items():
            yield "_total", {**labels, "status": status}, count


def _durations(named: Iterable[tuple[str, Service]]) -> Iterator[Sample]:
    for labels, entry in _endpoints(named):
        for bound, count in zip((*BOUNDS_S, "+Inf"), accumulate(entry.buckets), strict=True):
            yield "_bucket", {**labels, "le": bound}, count
        yield "_count", labels, sum(entry.buckets)
        yield "_sum", labels, entry.seconds


def _bytes(named: Iterable[tuple[str, Service]], direction: str) -> Iterator[Sample]:
    for labels, entry in _endpoints(named):
        yield "_total", labels, getattr(entry, direction)


def _endpoints(
    named: Iterable[tuple[str, Service]],
) -> Iterator[tuple[dict[str, object], EndpointTraffic]]:
    for name, service in named:
        for endpoint, entry in service.pool.traffic.endpoints.items():
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

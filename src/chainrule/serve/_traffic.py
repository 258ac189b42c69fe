"""What passed through a component, counted in constant time and told on demand."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable
from typing import Any

from chainrule._errors import ChainruleError
from chainrule.serve._calls import Call, Reply

__all__ = ["BOUNDS_S", "Traffic", "percentiles"]

BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
    600.0,
)
"""Upper bounds of the latency histogram; one more bucket holds what takes longer."""

_RECENT = 1024
_CANCELLED = 499


class Traffic:
    """Requests of one component, by endpoint.

    Attributes:
        requests: (endpoint, status) → how many.
        latency: endpoint → how many took up to each of `BOUNDS_S`, and longer.
        latency_sum_s: endpoint → seconds altogether.
        received, sent: endpoint → bytes of bodies.
        recent: when the last requests ended, and how long they took.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latency: dict[str, list[int]] = {}
        self.latency_sum_s: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    async def counted(self, call: Call, answer: Awaitable[Reply]) -> Reply:
        """Wait for the answer to a call, and count it whatever it is. Of merged calls each is counted."""
        if call.merged:
            return await answer
        start = time.perf_counter()
        status, reply = _CANCELLED, None
        try:
            reply = await answer
            status = reply.status
            return reply
        except ChainruleError as error:
            status = error.http_status
            raise
        finally:
            self.record(call, status, time.perf_counter() - start, reply)

    def record(self, call: Call, status: int, seconds: float, reply: Reply | None) -> None:
        """Count a request that is over."""
        sent = 0 if reply is None else reply.nbytes
        self.add(call.endpoint, status, seconds, _size(call.body), sent)

    def add(self, endpoint: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request that is over, whoever answered it."""
        self.requests[endpoint, status] += 1
        buckets = self.latency.get(endpoint)
        if buckets is None:
            buckets = self.latency[endpoint] = [0] * (len(BOUNDS_S) + 1)
        buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.latency_sum_s[endpoint] += seconds  # type: ignore[assignment]
        self.received[endpoint] += received
        self.sent[endpoint] += sent
        self.recent.append((time.monotonic(), seconds))

    @property
    def total(self) -> int:
        """How many requests there were."""
        return sum(self.requests.values())

    @property
    def errors(self) -> int:
        """How many of them did not succeed."""
        return sum(count for (_, status), count in self.requests.items() if status >= 400)


def percentiles(seconds: list[float]) -> dict[str, float | None]:
    """The median and the slow end of some latencies."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99)}


def _size(body: Any) -> int:
    nbytes = getattr(body, "nbytes", None)
    return len(body) if nbytes is None else nbytes

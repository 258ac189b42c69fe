"""What passed through a component, counted in constant time and told on demand."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable

from chainrule._errors import ChainruleError
from chainrule.serve._calls import Call, Reply

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


class EndpointTraffic:
    """What passed through one endpoint. Plain numbers: every request adds to all of them.

    Attributes:
        statuses: HTTP status → how many.
        buckets: how many took up to each of `BOUNDS_S`, and longer.
        seconds: altogether.
        received, sent: bytes of bodies.
    """

    __slots__ = ("buckets", "received", "seconds", "sent", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0
        self.received = 0
        self.sent = 0


class Traffic:
    """Requests of one component.

    Attributes:
        endpoints: name → what passed through.
        recent: when the last requests ended (`time.perf_counter`), and how long they took.
    """

    def __init__(self) -> None:
        self.endpoints: dict[str, EndpointTraffic] = {}
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
        body = call.body
        received = len(body) if type(body) is bytes else body.nbytes
        self.add(call.endpoint, status, seconds, received, 0 if reply is None else reply.nbytes)

    def refuse(self, endpoint: str, status: int) -> None:
        """Count a request that was turned away before anybody was to answer it; it took no time."""
        entry = self.endpoints.setdefault(endpoint, EndpointTraffic())
        entry.statuses[status] = entry.statuses.get(status, 0) + 1

    def add(self, endpoint: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request that is over, whoever answered it."""
        entry = self.endpoints.get(endpoint)
        if entry is None:
            entry = self.endpoints[endpoint] = EndpointTraffic()
        entry.statuses[status] = entry.statuses.get(status, 0) + 1
        entry.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        entry.seconds += seconds
        entry.received += received
        entry.sent += sent
        self.recent.append((time.perf_counter(), seconds))

    @property
    def total(self) -> int:
        """How many requests there were."""
        return sum(sum(entry.statuses.values()) for entry in self.endpoints.values())

    @property
    def errors(self) -> int:
        """How many of them did not succeed."""
        return sum(
            count
            for entry in self.endpoints.values()
            for status, count in entry.statuses.items()
            if status >= 400
        )


def percentiles(seconds: list[float]) -> dict[str, float | None]:
    """The median and the slow end of some latencies."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99)}

"""Room for connections: those that ask for nothing give way to those that do.

A connection costs its holder nothing, so the number of open ones says nothing about the load. What is limited
is how many have a request under way. Others are kept as long as there is room; when there is none, those that
have waited the longest are closed, of the address with the most connections first. So a caller that holds
thousands of idle connections takes them from itself, and nobody who asks for something is turned away because
of them. Whoever follows the events of a job waits too: those who are closed find the job again.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Protocol

FOLLOWS = "chainrule.follows"
"""In the ASGI scope of a request that is answered, but whose answer goes on as things happen."""

_log = logging.getLogger(__name__)

# Files, workers, clients of the same host and all else that is no connection.
_OTHER_DESCRIPTORS = 256
_WARN_EVERY_S = 60.0


class Connection(Protocol):
    """What is asked of a connection.

    Attributes:
        address: of the caller.
        waits_since: since when it has had no request under way; `None` while it has one.
    """

    @property
    def address(self) -> str: ...
    @property
    def waits_since(self) -> float | None: ...
    def give_way(self) -> None:
        """Close it at once."""


class Crowd:
    """The bounds on connections of one server.

    Args:
        limit: how many may have a request under way. As many may be open, and some more that are about to
            ask for something.

    Attributes:
        connections: all that are open; the web server's set.
    """

    def __init__(self, limit: int) -> None:
        self.connections: set[Connection] = set()
        self._limit = limit
        self._spare = spare_of(limit)
        self._warned_at: dict[str, float] = {}

    def is_full(self, running: int) -> bool:
        """Whether requests are to be turned away.

        Args:
            running: how many are being answered, of those who follow something too. The connections are
                looked at only if that may be too many.
        """
        if running < self._limit:
            return False
        if sum(connection.waits_since is None for connection in self.connections) <= self._limit:
            return False
        self._warn("%d requests are under way; more are turned away (--max-connections).")
        return True

    def thin_out(self, connections: set[Connection]) -> None:
        """Close some of those that wait, if there are too many.

        Some at once, so that not every newcomer has all others looked at; fewer than there is spare room, so
        that a newcomer has the time to say what it wants.
        """
        if len(connections) <= self._limit + self._spare:
            return
        self._warn("More than %d connections; those without a request are closed.")
        for connection in longest_waiting(connections, self._spare // 2):
            connections.discard(connection)
            connection.give_way()

    def _warn(self, message: str) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(message, -math.inf) >= _WARN_EVERY_S:
            self._warned_at[message] = now
            _log.warning(message, self._limit)


def spare_of(limit: int) -> int:
    """How many connections may be open beyond the limit."""
    return max(16, limit // 16)


def longest_waiting(connections: Iterable[Connection], count: int) -> list[Connection]:
    """Those to close first: they have the most newer ones of their address, or else have waited longest."""
    waiting = [(since, c) for c in connections if (since := c.waits_since) is not None]
    waiting.sort(key=itemgetter(0), reverse=True)
    newer: Counter[str] = Counter()
    ranked = []
    for since, connection in waiting:
        ranked.append(((newer[connection.address], -since), connection))
        newer[connection.address] += 1
    return [connection for _, connection in heapq.nlargest(count, ranked, key=itemgetter(0))]


@contextlib.contextmanager
def enough_descriptors(limit: int) -> Iterator[int]:
    """Let this process open files enough for so many connections; gives how many there can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limit + spare_of(limit) + _OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield limit
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield limit if allowed == wanted else _fitting(limit, allowed)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _fitting(limit: int, descriptors: int) -> int:
    """How many connections, fewer than wanted, so many descriptors are enough for."""
    room = descriptors - min(_OTHER_DESCRIPTORS, descriptors // 2)
    fitting = max(1, room - spare_of(room))
    _log.warning(
        "This process may open %d files: at most %d connections instead of %d. `ulimit -n` allows more.",
        descriptors,
        fitting,
        limit,
    )
    return fitting

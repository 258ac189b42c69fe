"""How many replicas a pool has: what users may ask for, and following the load."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable
from time import monotonic

from chainrule._errors import InputError


class Autoscaler:
    """Follows the number of calls that run or wait.

    Growing answers calls that wait now; shrinking bets that none will come, and loses a compiled component.
    So a pool grows in one step to what the load needs, and shrinks by one replica each time the load has
    needed fewer for `quiet_s`.

    Args:
        minimum: the least number of replicas.
        maximum: the greatest number of replicas.
        calls_per_replica: number of calls that one replica should have.
        quiet_s: seconds of lower load before a replica ends.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        minimum: int,
        maximum: int,
        *,
        calls_per_replica: int = 1,
        quiet_s: float = 10.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._minimum, self._maximum = minimum, maximum
        self._calls_per_replica = calls_per_replica
        self._quiet_s = quiet_s
        self._clock = clock
        self._quiet_since: float | None = None

    def target(self, size: int, load: int) -> int:
        """How many replicas there should be now.

        Args:
            size: number of replicas, those that are starting included.
            load: calls that run or wait.
        """
        asked = math.ceil(load / self._calls_per_replica)
        wanted = min(max(asked, self._minimum), self._maximum)
        if wanted >= size:
            self._quiet_since = None
            return wanted
        now = self._clock()
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._quiet_since < self._quiet_s:
            return size
        self._quiet_since = now
        return size - 1


def check_size(replicas: int, autoscale: tuple[int, int] | None) -> tuple[int, int]:
    """The least and the greatest number of replicas.

    Raises:
        InputError: they are not numbers of replicas (`bad_pool_size`).
    """
    asked = (replicas, replicas) if autoscale is None else autoscale
    with contextlib.suppress(TypeError, ValueError):  # no numbers, or not two of them
        minimum, maximum = map(operator.index, asked)
        if 1 <= minimum <= maximum:
            return minimum, maximum
    found = f"replicas={replicas!r}" if autoscale is None else f"autoscale={autoscale!r}"
    raise InputError(
        f"A pool has at least one replica, and the least number is not above the greatest; found {found}. "
        "Pass for example replicas=2, or autoscale=(1, 8).",
        code="bad_pool_size",
    )

"""How many replicas a load asks for: up at once, down slowly."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable
from time import monotonic

from chainrule._errors import InputError


class Autoscaler:
    """Follows the number of calls that run or wait.

    Growing answers a queue that is there; shrinking is a guess about the future, and loses a compiled
    component. So a pool grows in one step to what the load asks for, and shrinks by one replica each time
    the load has asked for fewer during `quiet_s`.

    Args:
        minimum: replicas that always stay.
        maximum: replicas there are at most.
        calls_per_replica: load that one replica is expected to bear.
        quiet_s: seconds of lower load before a replica goes.
        clock: seconds that never go back.
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
            size: replicas there are, those that are being started included.
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
        f"A pool has at least one replica and at most as many as it may have; found {found}. Pass for "
        "example replicas=2, or autoscale=(1, 8).",
        code="bad_pool_size",
    )

"""How many processors this process may use."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@cache
def processors() -> int:
    """The number of processors that the affinity of this process and the limit of its container allow."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        quota, period = map(int, _CPU_LIMIT.read_text().split())
        count = min(count, quota // period)
    return max(1, count)

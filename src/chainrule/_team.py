"""Threads that share the work of one: large copies, and loops of native kernels.

They are in C (`_team.c`): threads of Python would wait for its lock, longer than they help. Two cores copy
4 MB in six tenths of the time of one, and Python runs faster afterwards: half as much went through its
cache. 16 cores copy 40 MB in a tenth.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from functools import cache
from pathlib import Path

__all__ = ["TEAM", "Team", "processors"]

_MOST_HELPERS = 15
_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


class Team:
    """Helpers, once their library is there: it may have to be built first."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a process that has none of the threads of its parent."""
        self._is_called = threading.Lock()  # taken for good, by the first who needs them
        self._has_come = threading.Event()  # or it is clear that nobody comes
        self._library: ctypes.CDLL | None = None

    def library(self) -> ctypes.CDLL | None:
        """The functions of `_team.c`; `None` as long as nobody helps. Sends for helpers and does not wait."""
        if self._library is None and self._is_called.acquire(blocking=False):
            try:
                threading.Thread(target=self._come, name="chainrule-build").start()
            except RuntimeError:  # no more threads, or Python ends
                self._has_come.set()
        return self._library

    def wait_for_library(self) -> ctypes.CDLL | None:
        """The same, when it is clear whether somebody helps."""
        if self._is_called.acquire(blocking=False):
            self._come()
        self._has_come.wait()
        return self._library

    def _come(self) -> None:
        # Here, because a command that shares no work starts sooner without.
        from chainrule._c_library import load_c_library

        try:
            helpers = min(_MOST_HELPERS, processors() - 1)
            library = load_c_library(Path(__file__).with_suffix(".c")) if helpers else None
            if library is not None:
                self.start(library, helpers)
        finally:
            self._has_come.set()

    def start(self, library: ctypes.CDLL, helpers: int) -> None:
        """Start the threads of a library, for which this has to be the first time."""
        library.chainrule_copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        library.chainrule_copy.restype = None
        if library.chainrule_start(helpers):
            self._library = library


@cache
def processors() -> int:
    """How many this process may use, by its affinity and by the share of its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    # More threads than a container's share only make the system stop them all until the next period.
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        quota, period = map(int, _CPU_LIMIT.read_text().split())
        count = min(count, quota // period)
    return max(1, count)


TEAM = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TEAM.forget)

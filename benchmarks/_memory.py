"""Taking a lottery out of timings: memory that goes back to the system after every call."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> None:
    """Let the process keep what it frees, for all contestants alike.

    Results of some megabytes are freed between calls. Whether the C library then returns the pages, so that
    the next call faults them all in again (a millisecond), depends on what else happens to lie behind them.
    """
    try:
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, 1 << 30)
    except (OSError, AttributeError):  # another C library
        return

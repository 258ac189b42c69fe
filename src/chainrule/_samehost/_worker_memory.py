"""How a process that runs a component treats large pieces of memory."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Fresh memory is the larger part of the cost of large arrays; this keeps freed memory for the next call.
_MALLOC = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:"
    "glibc.malloc.trim_threshold=4294967296:glibc.malloc.top_pad=67108864"
)
# A result is copied to shared memory for another process, on another processor. Past this size the copy
# leaves the caches alone: it need not take the memory from the other's first, nor throw out what Python
# needs for the next call. The C library does so by itself from a share of the last cache on, which it
# takes to be hundreds of megabytes on some virtual machines.
_COPIES = "glibc.cpu.x86_non_temporal_threshold=0x200000"


def with_memory_settings(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables for such a process; what the user says about the C library stays."""
    return {"GLIBC_TUNABLES": f"{_MALLOC}:{_COPIES}", **variables}

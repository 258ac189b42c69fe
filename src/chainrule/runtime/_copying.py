"""Large arrays, copied by several threads.

XLA owns the memory of a program's results, so what a component returns is copied there; what goes to another
process is copied to memory that both see. For a large array the call is that copy, and one core does not use
the memory bus of a machine with many: on 16 cores of a Xeon four threads copy 4 MB in less than half the time
of one. On two cores waking the other one costs what it saves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from chainrule.runtime._copy_team import Team

__all__ = ["copy_into", "write_pieces"]

_LARGE_BYTES = 1 << 21
_THREADS = 4


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """`target[...] = source` for arrays of one shape, by several threads where that is faster."""
    plain = (
        target.nbytes < _LARGE_BYTES
        or target.dtype != source.dtype  # a conversion warns, or not, as the calling thread says
        or not (target.flags.c_contiguous and source.flags.c_contiguous)
    )
    if plain or not _team().copy(target.reshape(-1), source.reshape(-1)):
        target[...] = source


def write_pieces(target: Any, pieces: Iterable[bytes | memoryview]) -> int:
    """Write bytes, piece after piece, at the start of a writable buffer; the number of bytes."""
    view, position = memoryview(target), 0
    for piece in pieces:
        end = position + len(piece)
        if len(piece) < _LARGE_BYTES:
            view[position:end] = piece
        else:
            copy_into(np.frombuffer(view[position:end], np.uint8), np.frombuffer(piece, np.uint8))
        position = end
    return position


@cache
def _team() -> Team:
    # Here, because a command that copies nothing large starts sooner without.
    from chainrule.runtime._copy_team import Team

    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Team(_THREADS - 1 if processors >= _THREADS else 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.cache_clear)  # threads stay behind

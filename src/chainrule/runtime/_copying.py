"""Large arrays, copied by several threads.

XLA owns the memory of a program's results, so what a component returns is copied there; what goes to another
process is copied to memory that both see. For a large array the call is that copy. Two cores copy 4 MB in
six tenths of the time of one, and Python runs faster afterwards: half as much went through its cache. The
threads are in C (`_copying.c`): in Python they would wait for its lock, longer than they help.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SOURCE", "copy_into", "write_pieces"]

SOURCE = Path(__file__).with_suffix(".c")

_LARGE_BYTES = 1 << 21
# A helper that stays awake takes the processor that the other process needs to go on.
_LARGE_BYTES_FOR_OTHERS = 1 << 24
_HELPERS = 3


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """`target[...] = source` for arrays of one shape in different memory, by several threads where large."""
    plain = (
        target.nbytes < _LARGE_BYTES
        or target.dtype != source.dtype  # a conversion warns, or not, as the calling thread says
        or not (target.flags.c_contiguous and source.flags.c_contiguous)
    )
    if plain or not _team.copy(target, source):
        target[...] = source


def write_pieces(target: Any, pieces: Iterable[bytes | memoryview]) -> int:
    """Write bytes, piece after piece, at the start of a buffer for another process; the number of bytes."""
    view, position = memoryview(target), 0
    for piece in pieces:
        end = position + len(piece)
        if len(piece) < _LARGE_BYTES_FOR_OTHERS:
            view[position:end] = piece
        else:
            copy_into(np.frombuffer(view[position:end], np.uint8), np.frombuffer(piece, np.uint8))
        position = end
    return position


class _Team:
    """Threads that help with copies, from when their library is there: no call waits for a compiler."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a process that has none of the threads of its parent."""
        self._is_called = threading.Lock()  # taken for good, by the first who needs it
        self._copy: Callable[[int, int, int], None] | None = None

    def copy(self, target: np.ndarray, source: np.ndarray) -> bool:
        """Copy the bytes of an array; `False`, and nothing is done, if there is nobody to help."""
        if self._copy is None:
            if self._is_called.acquire(blocking=False):
                with contextlib.suppress(RuntimeError):  # no more threads, or Python ends
                    threading.Thread(target=self._come, name="chainrule-build").start()
            return False
        self._copy(_address(target), _address(source), target.nbytes)
        return True

    def _come(self) -> None:
        # Here, because a command that copies nothing large starts sooner without.
        from chainrule._c_library import load_c_library

        helpers = min(_HELPERS, _processors() - 1)
        library = load_c_library(SOURCE) if helpers else None
        if library is not None:
            self.start(library, helpers)

    def start(self, library: ctypes.CDLL, helpers: int) -> None:
        """Start the threads of a library, for which this has to be the first time."""
        if library.chainrule_start_copying(helpers):
            copy = library.chainrule_copy
            copy.argtypes, copy.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), None
            self._copy = copy


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class _ArrayInterface(ctypes.Structure):
    """What NumPy's array interface has behind `__array_struct__`."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("two", "ndim")),
        ("kind", ctypes.c_char),
        *((name, ctypes.c_int) for name in ("itemsize", "flags")),
        *((name, ctypes.c_void_p) for name in ("shape", "strides", "data")),
    )


_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _address(array: np.ndarray) -> int:
    # `__array_interface__` makes several objects to say the same: 3 µs for two arrays after a large copy.
    capsule = array.__array_struct__
    return _ArrayInterface.from_address(_pointer_in(capsule, None)).data


_team = _Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.forget)

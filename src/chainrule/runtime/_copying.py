"""Large arrays, copied by several threads.

XLA owns the memory of a program's results, so what a component returns is copied there; what goes to another
process is copied to memory that both see. For a large array the call is that copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

from chainrule._team import TEAM, processors

__all__ = ["copy_into", "write_pieces"]

_LARGE_BYTES = 1 << 21
_VERY_LARGE_BYTES = 1 << 24


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """`target[...] = source` for arrays of one shape in different memory, by several threads where large."""
    plain = (
        target.nbytes < _LARGE_BYTES
        or target.dtype != source.dtype  # a conversion warns, or not, as the calling thread says
        or not (target.flags.c_contiguous and source.flags.c_contiguous)
    )
    if plain or not _copy_together(target, source):
        target[...] = source


def write_pieces(target: Any, pieces: Iterable[bytes | memoryview]) -> int:
    """Write bytes, piece after piece, at the start of a buffer for another process; the number of bytes."""
    view, position = memoryview(target), 0
    for piece in pieces:
        end = position + len(piece)
        if _is_large_for_others(len(piece)):
            copy_into(np.frombuffer(view[position:end], np.uint8), np.frombuffer(piece, np.uint8))
        else:
            view[position:end] = piece
        position = end
    return position


def _is_large_for_others(nbytes: int) -> bool:
    # Of two processors the other process needs one to go on, which a helper that stays awake would take.
    return nbytes >= _VERY_LARGE_BYTES or (nbytes >= _LARGE_BYTES and processors() > 2)


def _copy_together(target: np.ndarray, source: np.ndarray) -> bool:
    """Copy the bytes of an array; `False`, and nothing is done, if there is nobody to help."""
    library = TEAM.library()
    if library is None:
        return False
    library.chainrule_copy(_address(target), _address(source), target.nbytes)
    return True


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

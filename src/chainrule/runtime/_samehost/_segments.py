"""One piece of memory that several processes map."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from chainrule._errors import DecodeError

__all__ = ["Segment", "is_supported"]

_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)
_MIN_BYTES = 1 << 16


def is_supported() -> bool:
    """Whether this machine has anonymous shared memory and packet sockets (Linux)."""
    return hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")


class Segment:
    """Shared memory of a fixed size.

    A segment cannot shrink: it is sealed by its maker, and `open` refuses one that is not, because a
    process that reads past the end of shrunken memory is killed.

    Attributes:
        key: name of the segment between two processes.
        size: bytes that fit in.
        descriptor: to hand to another process.
    """

    def __init__(self, key: str, descriptor: int, size: int, *, is_ours: bool) -> None:
        self.key = key
        self.descriptor = descriptor
        self.size = size
        self._is_ours = is_ours
        weakref.finalize(self, os.close, descriptor)

    @cached_property
    def _mapped(self) -> mmap.mmap:
        """The memory; mapped when it is first looked at, so that passing a segment on costs nothing."""
        if self._is_ours:
            return mmap.mmap(self.descriptor, self.size)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(self.descriptor, self.size, flags=flags, prot=mmap.PROT_READ)

    @classmethod
    def create(cls, key: str, nbytes: int) -> Segment:
        """New memory for at least `nbytes`, in steps that make reuse likely.

        Raises:
            OSError: the machine has no memory left for it.
        """
        size = _MIN_BYTES
        while size < nbytes:
            size *= 2
        if size > 1 << 22:  # large ones: steps of an eighth waste less
            step = size // 16
            size = -(-nbytes // step) * step
        descriptor = os.memfd_create("chainrule", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(key, descriptor, size, is_ours=True)

    @classmethod
    def open(cls, key: str, descriptor: int) -> Segment:
        """Memory that another process made; the descriptor is ours from now on.

        Raises:
            DecodeError: the descriptor is not sealed shared memory (`bad_segment`).
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise OSError("not sealed")
            size = os.fstat(descriptor).st_size
        except OSError:
            os.close(descriptor)
            raise DecodeError(
                "Expected sealed shared memory; found another kind of file.", code="bad_segment"
            ) from None
        return cls(key, descriptor, size, is_ours=False)

    def array(self, nbytes: int) -> np.ndarray[Any, Any]:
        """The first bytes as an array. While it, or any view of it, lives, the memory is in use."""
        if not 0 <= nbytes <= self.size:
            raise DecodeError(
                f"A body of {nbytes} bytes was declared in a segment of {self.size}.",
                code="bad_segment",
            )
        return np.frombuffer(self._mapped, np.uint8, nbytes) if nbytes else np.empty(0, np.uint8)

    def lease(self, nbytes: int, on_return: Callable[[], Any]) -> np.ndarray[Any, Any]:
        """`array` that calls `on_return` once neither it nor any view of it is left."""
        array = self.array(nbytes)
        weakref.finalize(array, on_return).atexit = False
        return array

"""What a worker is doing right now, in memory that its supervisor reads without asking it."""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

__all__ = ["CallSlot", "CurrentCall"]

_CURRENT = struct.Struct("<QQQ")
"""Number of the client and of its call (zeros: idle), and how many calls were answered so far."""
_CANCELLED = struct.Struct("<Q")
# On another cache line than what the worker writes with every call.
_CANCELLED_OFFSET = 64
_SIZE = mmap.PAGESIZE


class CurrentCall(NamedTuple):
    """The call that a worker is answering.

    Attributes:
        client: number of the client's connection.
        number: of the call, chosen by the client; 0 while the worker is reading it.
    """

    client: int
    number: int


class CallSlot:
    """One record that a worker writes and its supervisor reads; no system call on either side.

    The worker writes it before it reads a call, before it runs it, and after the reply has left. So when
    a worker dies, the slot tells which call it took along; at worst one whose reply had just left, which
    the client knows by the call's number and ignores.

    Args:
        descriptor: of the memory, or `None` to make some; the descriptor is then ours to hand on.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("chainrule-slot", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, _SIZE)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)
        self._answered = 0

    def begin(self, client: int, number: int = 0) -> None:
        """The worker reads a call, or starts on it once it knows its number."""
        _CURRENT.pack_into(self._memory, 0, client, number, self._answered)

    def end(self, *, answered: bool) -> None:
        """The worker has sent the reply, or there was nothing for it to answer."""
        self._answered += answered
        _CURRENT.pack_into(self._memory, 0, 0, 0, self._answered)

    @property
    def current(self) -> CurrentCall | None:
        """What the worker is doing."""
        client, number, _ = _CURRENT.unpack_from(self._memory)
        return CurrentCall(client, number) if client else None

    @property
    def answered(self) -> int:
        """How many calls the worker has answered."""
        return _CURRENT.unpack_from(self._memory)[2]

    def cancel(self, call: CurrentCall) -> None:
        """The supervisor marks a call as no longer wanted; a signal makes the worker look."""
        _CANCELLED.pack_into(self._memory, _CANCELLED_OFFSET, call.number)

    @property
    def is_cancelled(self) -> bool:
        """Whether the mark is on the call that the worker is answering now."""
        (number,) = _CANCELLED.unpack_from(self._memory, _CANCELLED_OFFSET)
        current = self.current
        return current is not None and current.number == number

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

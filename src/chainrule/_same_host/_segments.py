"""Shared memory for large bodies: who makes it, who reads it, and when it is used again.

A *segment* is a piece of memory without a name (`memfd`). It goes to another process as a descriptor, and is
gone when the last process that has it closes it.

    caller (a client, or a server)                     worker
    writes the request into segment A  ── A, B ──▶     copies A to memory of its own, calls the component,
    reads the answer from segment B    ◀── reply ──    writes the answer into segment B, or into a new one

A client copies B to memory of its own. A server sends B as it is, and uses it again when all is sent.

Three rules make this safe.

1. Arrays of users and authors are never in shared memory. The receiver copies a body once, before anything is
   decoded, into memory that no other process can write to.
2. Segments belong to the caller, also those that a worker has made for an answer: the worker closes them.
   Only the caller uses a segment again, and only after the worker has replied. If the worker does not reply
   (a timeout, a lost connection, a crash, an answer of the server in its place) the caller closes the
   segments of that call: a worker that is still running then writes to memory that is never read.
3. A segment cannot shrink. Its maker seals it, and the receiver refuses one that is not sealed: a process
   that reads beyond the end of a file is killed. Only as much as the body is mapped.

Segments are used again because new memory costs five times as much as writing to memory that is there: the
system has to find and clear every page, and each process has to map it. For the same reason a caller uses the
memory of its own again into which it copies large answers (`_AnswerMemory`).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from chainrule._errors import DecodeError
from chainrule._same_host._messages import INLINE_BYTES

_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)
_MIN_BYTES = 1 << 16
# Mapped in such steps, so that bodies of about the same size find the memory mapped.
_MAP_STEP = 1 << 20
# Idle segments of a caller beyond this are closed, and memory for answers beyond this is not used again.
_MAX_IDLE_BYTES = 256 << 20
# Each idle segment holds a descriptor, of which a process may have a thousand.
_MAX_IDLE = 16
# Smaller answers are copied into memory of malloc, which keeps such memory itself.
_MIN_ANSWER_BYTES = 1 << 20
# Of a process: those that were not used for the longest time go first. Each needs two descriptors.
_MAX_MAPPED_BYTES = 1 << 30
_MAX_MAPPED = 64


def is_supported() -> bool:
    """Whether this machine has anonymous shared memory and packet sockets (Linux)."""
    return hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")


class Segment:
    """Shared memory of a fixed size; see the module for its rules.

    Args:
        descriptor: of the memory; closed with the segment.

    Raises:
        DecodeError: the descriptor is not sealed shared memory (`bad_segment`).

    Attributes:
        descriptor: to send to another process.
        size: bytes that fit in.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._mapped: mmap.mmap | None = None
        try:
            # Sealed against growing, too: the size that is read here is then the size for good, and `fstat`
            # is asked once.
            is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        except OSError:  # another kind of file
            is_sealed = False
        if not is_sealed:
            self.close()
            raise DecodeError(
                "Expected shared memory that is sealed against shrinking; found another kind of file.",
                code="bad_segment",
            )
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """New memory for `nbytes`.

        Raises:
            OSError: the machine has no memory or no descriptor left for it.
        """
        descriptor = os.memfd_create("chainrule", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, max(nbytes, 1))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    @property
    def identity(self) -> tuple[int, int]:
        """The same for every descriptor of this memory, as long as one process has it open."""
        # The number of a descriptor says nothing, because each message brings a new one. The inode of a memfd
        # is unique while any process holds it, and `MappedSegments` holds what it has mapped: no other memory
        # can have its number.
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    def view(self, nbytes: int) -> memoryview:
        """The first bytes. Every process that has the segment may write to them at any time.

        Raises:
            DecodeError: there are fewer, or they may not be written to (`bad_segment`).
            OSError: this process has no memory or no descriptor left to map them.
        """
        if not 0 <= nbytes <= self.size:
            raise DecodeError(
                f"A body of {nbytes} bytes was declared in a segment of {self.size}.",
                code="bad_segment",
            )
        if self._mapped is None or len(self._mapped) < nbytes:
            # -(-a // b) is a / b rounded up. A segment of a stranger may claim any size; what is mapped is
            # bounded by the body that was declared, not by that.
            length = min(self.size, -(-nbytes // _MAP_STEP) * _MAP_STEP)
            try:
                self._mapped = mmap.mmap(self.descriptor, length) if length else None
            except PermissionError as error:
                raise DecodeError(
                    "Expected shared memory that may be written to; found memory that may only be read.",
                    code="bad_segment",
                ) from error
        return (
            memoryview(bytearray()) if self._mapped is None else memoryview(self._mapped)[:nbytes]
        )

    def copy(self, nbytes: int) -> np.ndarray[Any, Any]:
        """The first bytes in memory of our own."""
        return np.array(self.view(nbytes), np.uint8)

    def write(self, pieces: Sequence[Any]) -> int:
        """Write bytes, piece after piece, at the start; the number of bytes."""
        position = 0
        view = self.view(sum(map(len, pieces)))
        for piece in pieces:
            view[position : position + len(piece)] = piece
            position += len(piece)
        return position

    def write_at(self, position: int, piece: Any) -> int:
        """Write bytes into memory that is not mapped; the position after them.

        For memory that is written once: the system need not clear pages that are written as a whole.

        Raises:
            OSError: the machine has no memory left.
        """
        rest = memoryview(piece).cast("B")
        while rest:
            count = os.pwrite(self.descriptor, rest, position)
            rest, position = rest[count:], position + count
        return position

    @property
    def mapped_bytes(self) -> int:
        """How much of it is mapped here."""
        return 0 if self._mapped is None else len(self._mapped)

    def close(self) -> None:
        """Close the descriptor. Views of the memory stay valid."""
        # Not `mmap.close`: it raises while a memoryview refers to the map. Without this reference the map
        # ends with its last view.
        self._mapped = None
        self._close()


def stored(pieces: Sequence[Any]) -> Segment:
    """Pieces of a body in a new segment.

    Raises:
        OSError: the machine has no memory or no descriptor left for it.
    """
    segment, position = Segment.create(sum(map(len, pieces))), 0
    for piece in pieces:
        position = segment.write_at(position, piece)
    return segment


class _Block(NamedTuple):
    """Memory of this process, and the object through which everything that reads it refers to it.

    NumPy, memoryviews and torch hold the object from which they got a buffer for as long as they use it. So
    when the object is gone, no array is left that lies in the memory.
    """

    memory: mmap.mmap
    user: weakref.ref[Any]


class _AnswerMemory:
    """Memory of this process for the answers of a caller. Safe between threads.

    A block is used again when the arrays of the answer that it held are gone; see `_Block`. The last blocks
    are remembered, used or not; memory of those that are not is freed with the last array in it.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lock = threading.Lock()

    def copy(self, source: memoryview) -> np.ndarray[Any, Any]:
        """A copy of some bytes."""
        if len(source) < _MIN_ANSWER_BYTES:
            return np.array(source, np.uint8)
        copied = np.frombuffer(self._take(len(source)), np.uint8, len(source))
        np.copyto(copied, source)
        return copied

    def _take(self, nbytes: int) -> Any:
        """A reference to a block with room for `nbytes` that has no other user."""
        with self._lock:
            idle = [b for b in self._blocks if b.user() is None and len(b.memory) >= nbytes]
            block = min(idle, key=lambda block: len(block.memory), default=None)
            # A block of more than twice the size would keep as much memory idle as it serves for as long as
            # the answer lives.
            if block is None or len(block.memory) > 2 * nbytes:
                memory = _private(nbytes)
            else:
                self._blocks.remove(block)
                memory = block.memory
            # An object of its own between the map, which this list holds, and the arrays, which hold this
            # object: when it is gone, none of them is left. It keeps the map alive itself (`from_buffer`).
            user = (ctypes.c_char * len(memory)).from_buffer(memory)
            self._blocks.append(_Block(memory, weakref.ref(user)))
            while sum(len(block.memory) for block in self._blocks) > _MAX_IDLE_BYTES:
                # The oldest entry. Memory of an answer that is still in use is only forgotten here: `user`
                # keeps it.
                self._blocks.pop(0)
        return user


def _private(nbytes: int) -> mmap.mmap:
    """New memory that no other process sees, in large pages where the system has them."""
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class SegmentPool:
    """Segments that a caller uses again, call after call. Safe between threads.

    Attributes:
        answers: where the caller copies answers to.
    """

    def __init__(self) -> None:
        self.answers = _AnswerMemory()
        self._idle: list[Segment] = []
        self._returned: deque[Segment] = deque()
        # Held only while the list is looked at. Memory is allocated outside of it, and so can be slow.
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def take(self, nbytes: int) -> Segment:
        """A segment with room for `nbytes`: the smallest idle one that is not far too large, or a new one.

        Raises:
            OSError: the machine has no memory or no descriptor left for it.
        """
        segment = self.find(nbytes)
        if segment is None:
            segment = Segment.create(_rounded(nbytes))
            # Memory that is missing is an error here; written to through a map it would end the process.
            os.posix_fallocate(segment.descriptor, 0, segment.size)
        return segment

    def find(self, nbytes: int) -> Segment | None:
        """The smallest idle segment with room for `nbytes` that is not far too large."""
        with self._lock:
            # A small body in a large segment would keep that from the large bodies it was made for; up to 1
            # MiB that does not matter.
            fitting = [s for s in self._ours() if nbytes <= s.size <= max(8 * nbytes, 1 << 20)]
            if not fitting:
                return None
            return self._removed(min(fitting, key=lambda segment: segment.size))

    def take_largest(self) -> Segment | None:
        """The largest idle segment, for an answer of a size that is not known yet."""
        with self._lock:
            idle = self._ours()
            return self._removed(max(idle, key=lambda segment: segment.size)) if idle else None

    def give_back(self, segment: Segment) -> None:
        """Take back a segment that no other process uses any more.

        A finalizer may call this at any point, also in a thread that holds the lock. So nothing waits for the
        lock here: where it is taken, the segment stays in `_returned` until the pool is used next.
        """
        self._returned.append(segment)
        if self._lock.acquire(blocking=False):
            try:
                self._ours()
            finally:
                self._lock.release()

    def _ours(self) -> list[Segment]:
        """The idle segments, those that were returned included; the lock is held."""
        if self._pid != os.getpid():  # after a fork the parent uses the same memory
            self._pid, self._idle, self._returned = os.getpid(), [], deque()
        while self._returned:
            self._idle.append(self._returned.popleft())
        while (
            len(self._idle) > _MAX_IDLE
            or sum(segment.size for segment in self._idle) > _MAX_IDLE_BYTES
        ):
            self._idle.pop(0).close()
        return self._idle

    def _removed(self, segment: Segment) -> Segment:
        self._idle.remove(segment)
        return segment


class CallMemory:
    """The segments of one call: its body, and room for the answer. They are the caller's.

    Args:
        pool: where the segments come from, and go when the call is over.
        pieces: buffers which, one after the other, are the body; it is put into a segment if it is large.
        wants_room: the answer is likely to be large.

    Raises:
        OSError: the machine has no memory or no descriptor left.

    Attributes:
        body: the segment with the body, if it is in one.
        body_bytes: how much of it is the body.
        room: the segment for the answer, if there is one.
    """

    def __init__(self, pool: SegmentPool, pieces: Sequence[Any], *, wants_room: bool) -> None:
        nbytes = sum(map(len, pieces))
        self._pool = pool
        self.body: Segment | None = None
        self.body_bytes = 0
        self.room: Segment | None = None
        if nbytes > INLINE_BYTES:
            self.body = pool.take(nbytes)
            self.body_bytes = self.body.write(pieces)
        if wants_room:
            self.room = pool.take_largest()

    @property
    def descriptors(self) -> list[int]:
        """Of the body and of the room, in this order."""
        return [segment.descriptor for segment in self._segments]

    @property
    def _segments(self) -> list[Segment]:
        return [segment for segment in (self.body, self.room) if segment is not None]

    def answer(self, nbytes: int, descriptor: int | None) -> np.ndarray[Any, Any]:
        """The answer in memory of our own.

        Args:
            nbytes: its size.
            descriptor: of the segment that the worker has made for it, which is ours from now on; `None` when
                it lies in the room.

        Raises:
            DecodeError: there is no such memory (`bad_segment`).
        """
        if descriptor is None:
            segment = self.room
        else:
            segment = Segment(descriptor)
            if self.room is not None:  # it was too small
                self._pool.give_back(self.room)
            self.room = segment
        if segment is None:
            raise DecodeError("The answer lies in memory that was not offered.", code="bad_segment")
        return self._pool.answers.copy(segment.view(nbytes))

    def give_back(self) -> None:
        """The worker has replied: the segments are used again."""
        for segment in self._segments:
            self._pool.give_back(segment)
        self.body = self.room = None

    def close(self) -> None:
        """The worker has not replied: the segments are not used again."""
        for segment in self._segments:
            segment.close()
        self.body = self.room = None


def _rounded(nbytes: int) -> int:
    """A size in steps that make reuse likely: powers of two, and sixteenths of them for large ones."""
    size = _MIN_BYTES
    while size < nbytes:
        size *= 2
    # Powers of two up to 4 MiB, where an unused half costs little. Beyond, `step` is a sixteenth of the next
    # power, so at most an eighth of the segment is not used: size / 2 < nbytes, and the excess is below size
    # / 16.
    if size <= 1 << 22:
        return size
    step = size // 16
    return -(-nbytes // step) * step


class MappedSegments:
    """Segments of callers that a process has mapped, kept while they are used. One thread only.

    Mapping 80 MB takes as long as copying them twice, so a segment that comes again is mapped already. One
    that does not come again for some seconds is dropped: its caller may have ended.

    Attributes:
        max_idle_s: how long one is kept after its last use.
    """

    max_idle_s = 5.0

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], tuple[float, Segment]] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, descriptor: int) -> Segment:
        """The segment of a descriptor, which is ours from now on.

        Raises:
            DecodeError: it is not sealed shared memory (`bad_segment`).
        """
        segment = Segment(descriptor)
        identity = segment.identity
        if identity in self._segments:
            segment.close()
            _, segment = self._segments.pop(identity)
        self._segments[identity] = (
            time.monotonic(),
            segment,
        )  # at the end: they stay in order of use
        while len(self._segments) > 1 and self._is_full:
            self._drop_oldest()
        self.let_go_of_unused()
        return segment

    def let_go_of_unused(self) -> None:
        """Drop those that were not used for a while."""
        now = time.monotonic()
        while self._segments and now - next(iter(self._segments.values()))[0] > self.max_idle_s:
            self._drop_oldest()

    @property
    def _is_full(self) -> bool:
        nbytes = sum(segment.mapped_bytes for _, segment in self._segments.values())
        return nbytes > _MAX_MAPPED_BYTES or len(self._segments) > _MAX_MAPPED

    def _drop_oldest(self) -> None:
        # Not closed: a call may be using it. It is closed when nothing refers to it any more.
        del self._segments[next(iter(self._segments))]


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
    """Environment variables for a process that runs a component; those that the user has set stay.

    JAX takes three quarters of a GPU's memory when it starts, unless told otherwise: the second worker would
    find none.
    """
    ours = {
        "GLIBC_TUNABLES": f"{_MALLOC}:{_COPIES}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    return ours | dict(variables)

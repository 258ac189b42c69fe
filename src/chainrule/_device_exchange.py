"""Arrays on a GPU that go from one process to another one of the same host, without the host's memory.

    sender                                      receiver
    copies an array into a buffer of its own    opens the buffer, copies the array into memory of its own
    sends the buffer's handle in a message ──▶  keeps the buffer open for the next message

An *exchange buffer* is memory of its own (`cuMemAlloc`), used for nothing else: the arrays of a program lie
in pools, and a handle would show all of the pool. The driver makes a *handle* of 64 bytes for a buffer, with
which other processes map the same memory. In messages an array is a `DeviceArray` (`chainrule._codec`) with
the *place* of its numbers, in the peer's form `<UUID of the GPU>:<handle in base64>:<offset>:<size of the
buffer>`.

Four rules make this safe.

1. Arrays of users and authors are never in exchange buffers: each side copies, and waits for its copies
   before it says that it is done.
2. A buffer belongs to the process that made it. A caller makes the buffers of a call, those of the request
   and the *room* for the answer, so a worker that is killed leaves nothing behind. What a caller left behind
   that was killed is freed by the driver as soon as the workers close it, which they do after some idle
   seconds.
3. A caller uses buffers again when the worker has replied. If it has not, it may still write to them: they
   are *retired*, and freed long after.
4. CUDA forbids to free a buffer that another process has open. Receivers close what they have not used for
   `MAX_IDLE_S`, so a sender frees what it has not sent for several times as long, and no earlier. What does
   not fit into the share of the memory that a pool may take goes through the host.

Receivers of the peer open a handle for one message and close it again, and expect the same of us.

The driver is called by `ctypes`: its library is where a GPU is usable, and PyTorch has no functions for
this.
"""

from __future__ import annotations

import base64
import ctypes
import math
import re
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from chainrule._codec import DeviceArray, dtype_from_name
from chainrule._device import DeviceLibrary, dtype_of, is_on_device, to_host
from chainrule._errors import DecodeError, StorageError
from chainrule._trees import map_leaves

DEFAULT_SHARE = 0.25
"""How much of a GPU's memory the exchange buffers of one process may take."""
MAX_IDLE_S = 5.0
"""After how long a receiver closes a buffer that does not come again."""
# Of rule 4: a receiver may be late, but not by this much.
_FREE_AFTER_S = 12 * MAX_IDLE_S
# Of rule 3: as long as the peer keeps what a client does not acknowledge.
_RETIRED_S = 300.0
_ALIGNMENT = 256
_MIN_BYTES = 1 << 16
_HANDLE_BYTES = 64
_PLACE = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([A-Za-z0-9+/=]*):([0-9]{1,18}):([0-9]{1,18})"
)


class ExchangeDevice(ABC):
    """One GPU, as far as exchange buffers need it. Addresses are of this process.

    Attributes:
        uuid: of the GPU, the same in every process.
        total_bytes: its memory.
    """

    uuid: str
    total_bytes: int

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """The address of a new buffer.

        Raises:
            StorageError: there is no memory left.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Free a buffer of this process."""

    @abstractmethod
    def export(self, address: int) -> bytes:
        """The handle of a buffer of this process."""

    @abstractmethod
    def open(self, handle: bytes) -> tuple[int, int]:
        """The address and the size of a buffer of another process.

        Raises:
            DecodeError: there is no such buffer (`bad_device_handle`).
        """

    @abstractmethod
    def close(self, address: int) -> None:
        """Close a buffer of another process."""

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy within the GPU, behind what is on a stream."""

    @abstractmethod
    def synchronize(self, stream: int) -> None:
        """Wait for what is on a stream."""


class _Handle(ctypes.Structure):
    _fields_ = (("content", ctypes.c_char * _HANDLE_BYTES),)


class CudaDevice(ExchangeDevice):
    """The first GPU that this process sees, by CUDA's driver.

    Args:
        library: of the driver.

    Raises:
        OSError: there is no driver.
        StorageError: the driver has no GPU that can be used.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._driver = ctypes.CDLL(library)
        device, context, free, total = (
            ctypes.c_int(),
            ctypes.c_void_p(),
            ctypes.c_size_t(),
            ctypes.c_size_t(),
        )
        name = (ctypes.c_char * 16)()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetUuid_v2", name, device)
        # The context of CUDA's runtime, in which torch, CuPy and XLA work.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self._enter()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.uuid = str(uuid.UUID(bytes=bytes(name)))
        self.total_bytes = total.value

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self._enter()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, address: int) -> None:
        self._enter()
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address: int) -> bytes:
        handle = _Handle()
        self._enter()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def open(self, handle: bytes) -> tuple[int, int]:
        address, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        self._enter()
        try:
            # 1 is the only flag there is: memory of another GPU becomes readable when it is first read.
            self._call(
                "cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), 1
            )
        except StorageError as error:
            raise DecodeError(
                f"This process cannot open GPU memory of another one: {error.message} Both have to be on one "
                "host, in one IPC namespace, and see the same GPU.",
                code="bad_device_handle",
            ) from error
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        return address.value, size.value

    def close(self, address: int) -> None:
        self._enter()
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter()
        self._call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(stream),
        )

    def synchronize(self, stream: int) -> None:
        self._enter()
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def _enter(self) -> None:
        """Let this thread, which may be a new one, work in the context."""
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._driver, function)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            said = (text.value or b"unknown error").decode()
            raise StorageError(
                f"{function} of CUDA's driver failed with {status} ({said}).",
                code="device_failed",
                details={"status": status},
            )


@cache
def exchange_device() -> ExchangeDevice | None:
    """The GPU that this process exchanges memory of; `None` where there is none."""
    try:
        return CudaDevice()
    except (OSError, StorageError):
        return None


class Place(NamedTuple):
    """Where the numbers of an array are; see the module."""

    device: str
    handle: bytes
    offset: int
    size: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place that a text says.

        Raises:
            DecodeError: it does not have the form (`bad_device_handle`).
        """
        found = _PLACE.fullmatch(text)
        try:
            if found is None:
                raise ValueError(text)
            handle = base64.b64decode(found[2], validate=True)
        except ValueError:
            raise _bad_place("<device>:<handle>:<offset>:<size>", "something else") from None
        if len(handle) not in (0, _HANDLE_BYTES):
            raise _bad_place(f"a handle of {_HANDLE_BYTES} bytes", f"{len(handle)}")
        return cls(found[1], handle, int(found[3]), int(found[4]))

    @classmethod
    def parse_room(cls, text: str) -> Place:
        """The place that a header says, in which case does not count.

        Raises:
            DecodeError: it does not have the form (`bad_device_handle`).
        """
        try:
            return cls.parse(bytes.fromhex(text).decode())
        except ValueError:
            raise _bad_place("hexadecimal digits", "other text") from None

    def as_room(self) -> str:
        """The place as text for a header."""
        return str(self).encode().hex()

    def __str__(self) -> str:
        handle = base64.b64encode(self.handle).decode()
        return f"{self.device}:{handle}:{self.offset}:{self.size}"


def _bad_place(expected: str, found: str) -> DecodeError:
    return DecodeError(
        f"Expected {expected} as the place of an array on a GPU; found {found}.",
        code="bad_device_handle",
    )


@dataclass(frozen=True, eq=False)
class Buffer:
    """An exchange buffer of this process.

    Attributes:
        address: in this process.
        size: in bytes.
        handle: for other processes.
    """

    address: int
    size: int
    handle: bytes


class BufferPool:
    """The exchange buffers of a process. Safe between threads.

    Args:
        device: whose memory it is.
        share: how much of that the buffers may take together.
    """

    def __init__(self, device: ExchangeDevice, share: float) -> None:
        self._device = device
        self._max_bytes = int(share * device.total_bytes)
        self._lock = threading.Lock()
        # By the time from which on they may be freed, those that are in use aside.
        self._idle: list[tuple[float, Buffer]] = []
        self._retired: list[tuple[float, Buffer]] = []
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """Of all buffers, used or not."""
        return self._held

    def take(self, nbytes: int) -> Buffer | None:
        """A buffer with room for `nbytes`; `None` if it does not fit into the share, or into the GPU."""
        with self._lock:
            self._free_old()
            # An idle buffer is used again before it is old: its receiver has read it (rule 3), and may have
            # it open, which rule 4 forbids only for freeing. That is also what makes keeping it open worth
            # while for the receiver.
            fitting = [e for e in self._idle if nbytes <= e[1].size <= max(4 * nbytes, _MIN_BYTES)]
            if fitting:
                found = min(fitting, key=lambda entry: entry[1].size)
                self._idle.remove(found)
                return found[1]
            size = max(_MIN_BYTES, -(-nbytes // _MIN_BYTES) * _MIN_BYTES)
            if self._held + size > self._max_bytes:
                return None
            try:
                address = self._device.allocate(size)
            except StorageError:
                return None
            try:
                handle = self._device.export(address)
            except StorageError:  # memory without a handle is of no use here
                self._device.free(address)
                return None
            self._held += size
            return Buffer(address, size, handle)

    def give_back(self, buffer: Buffer) -> None:
        """Take back a buffer that the receiver does not use any more; it may have it open."""
        with self._lock:
            # Twelve times as long as receivers keep it open without using it: the receiver looks at its own
            # clock only between calls, and may be busy with one when its time is over.
            self._idle.append((time.monotonic() + _FREE_AFTER_S, buffer))

    def retire(self, buffer: Buffer) -> None:
        """Take back a buffer that the receiver may still use."""
        with self._lock:
            self._retired.append((time.monotonic() + _RETIRED_S, buffer))

    def free_old(self) -> None:
        """Free what no receiver has open any more."""
        with self._lock:
            self._free_old()

    def close(self) -> None:
        """Free all that is not in use: the receivers have ended, or are told nothing more."""
        with self._lock:
            self._free([buffer for _, buffer in (*self._idle, *self._retired)])
            self._idle, self._retired = [], []

    def _free_old(self) -> None:
        now = time.monotonic()
        for entries in (self._idle, self._retired):
            old = [entry for entry in entries if entry[0] <= now]
            entries[:] = [entry for entry in entries if entry[0] > now]
            self._free([buffer for _, buffer in old])

    def _free(self, buffers: list[Buffer]) -> None:
        for buffer in buffers:
            self._device.free(buffer.address)
            self._held -= buffer.size


class OpenBuffers:
    """Exchange buffers of other processes that this process has open. Safe between threads.

    Args:
        device: whose memory it is.
    """

    def __init__(self, device: ExchangeDevice) -> None:
        self._device = device
        self._lock = threading.RLock()
        self._open: dict[bytes, tuple[float, int, int]] = {}  # last use, address, size

    def __len__(self) -> int:
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """Of all that are open."""
        return sum(size for _, _, size in self._open.values())

    def address(self, place: Place, nbytes: int) -> int:
        """The address of some bytes at a place; the buffer stays open.

        Raises:
            DecodeError: there is no such buffer, or it is smaller (`bad_device_handle`).
        """
        with self._lock:
            found = self._open.pop(place.handle, None)
            address, size = self._device.open(place.handle) if found is None else found[1:]
            self._open[place.handle] = time.monotonic(), address, size
        # `size` is what the driver says of the opened range (`cuMemGetAddressRange`), so it cannot be forged.
        # What the place says of its size is a claim: the GPU would stop this process at a read beyond it.
        if place.offset + nbytes > size:
            raise _bad_place(f"{nbytes} bytes at {place.offset}", f"a buffer of {size}")
        return address + place.offset

    @contextmanager
    def opened_once(self, place: Place, nbytes: int) -> Iterator[int]:
        """The address of some bytes at a place, whose buffer is closed again.

        The lock is held meanwhile: two arrays of one message may lie in one buffer.
        """
        with self._lock:
            address = self.address(place, nbytes)
            try:
                yield address
            finally:
                self._device.close(self._open.pop(place.handle)[1])

    def close_unused(self, idle_s: float = MAX_IDLE_S) -> None:
        """Close those that were not used for a while."""
        with self._lock:
            for handle, (since, address, _) in list(self._open.items()):
                if time.monotonic() - since >= idle_s:
                    del self._open[handle]
                    self._device.close(address)


class Exchange:
    """What one process exchanges with others.

    Args:
        device: the GPU.
        library: holds the arrays of this process.
        share: of the memory, for the buffers of this process.
    """

    def __init__(
        self, device: ExchangeDevice, library: DeviceLibrary, share: float = DEFAULT_SHARE
    ) -> None:
        self.device = device
        self.library = library
        self.pool = BufferPool(device, share)
        self.opened = OpenBuffers(device)

    @property
    def held_bytes(self) -> int:
        """GPU memory of this process, as far as it is known: arrays, and buffers of its own."""
        return self.library.held_bytes() + self.pool.held_bytes

    def wait(self) -> None:
        """Wait for the copies of this thread."""
        self.device.synchronize(self.library.stream())

    def write(self, array: Any, buffer: Buffer, offset: int = 0) -> DeviceArray:
        """Copy an array into a buffer of this process."""
        place = Place(self.device.uuid, buffer.handle, offset, buffer.size)
        return self.write_at(array, buffer.address + offset, place)

    def write_at(self, array: Any, address: int, place: Place) -> DeviceArray:
        """Copy an array to an address, which others know as a place."""
        packed = self.library.contiguous(array)
        nbytes = nbytes_of(packed)
        if nbytes:
            # `packed` may be a copy that only this function refers to. It may be freed while the copy from it
            # is queued, because the library's allocator gives the memory out again on the same stream only,
            # behind that copy.
            source = self.library.address(packed)
            self.device.copy(address, source, nbytes, self.library.stream())
        else:  # which has no memory, so that the peer gives it no handle
            place = place._replace(handle=b"", offset=0, size=0)
        return DeviceArray(dtype_of(packed).name, tuple(packed.shape), str(place))

    def read(self, array: DeviceArray, *, once: bool = False, own: Buffer | None = None) -> Any:
        """A copy of an array that is in a buffer.

        Args:
            array: what came.
            once: close the buffer afterwards, which its process may free then.
            own: a buffer of this process that it may be in.

        Raises:
            DecodeError: the buffer cannot be opened, or the array is not in it (`bad_device_handle`).
        """
        place, dtype = Place.parse(array.place), dtype_from_name(array.dtype)
        result = self.library.empty(array.shape, dtype)
        nbytes = math.prod(array.shape) * dtype.itemsize
        if not nbytes:
            return result
        if place.device != self.device.uuid or not place.handle:
            raise _bad_place(f"memory of the GPU {self.device.uuid}", f"of {place.device}")
        target, stream = self.library.address(result), self.library.stream()
        if own is not None and own.handle == place.handle:
            self.device.copy(target, own.address + place.offset, nbytes, stream)
            return result
        if once:
            # The copy has to be complete before the buffer is closed: closing unmaps it, and the copy is only
            # queued.
            with self.opened.opened_once(place, nbytes) as source:
                self.device.copy(target, source, nbytes, stream)
                self.device.synchronize(stream)
        else:
            self.device.copy(target, self.opened.address(place, nbytes), nbytes, stream)
        return result


def nbytes_of(array: Any) -> int:
    """How much memory the numbers of an array take."""
    return math.prod(array.shape) * dtype_of(array).itemsize


def with_device_arrays(tree: Any, write: Callable[[Any], DeviceArray | None]) -> Any:
    """A tree with what `write` makes of its arrays on a GPU; with arrays of the host where that is `None`."""

    def replace(leaf: Any) -> Any:
        if not is_on_device(leaf):
            return leaf
        return write(leaf) or to_host(leaf)

    return map_leaves(replace, tree)


def restored(tree: Any, read: Callable[[DeviceArray], Any]) -> Any:
    """A tree with arrays for what came in exchange buffers."""
    return map_leaves(lambda leaf: read(leaf) if type(leaf) is DeviceArray else leaf, tree)


class Room:
    """Writes the arrays of an answer into a buffer of the caller, one after the other.

    Args:
        exchange: of this process.
        place: the buffer.
    """

    def __init__(self, exchange: Exchange, place: Place) -> None:
        self._exchange, self._place = exchange, place
        self._position = 0

    def write(self, array: Any) -> DeviceArray | None:
        """Write one array; `None` where there is no room left."""
        place, offset = self._place, self._position
        nbytes = nbytes_of(array)
        if place.device != self._exchange.device.uuid or offset + nbytes > place.size:
            return None
        self._position = aligned(offset + nbytes)
        there = place._replace(offset=offset)
        address = self._exchange.opened.address(there, nbytes)
        return self._exchange.write_at(array, address, there)


def aligned(nbytes: int) -> int:
    """The next position at which an array may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

"""A "GPU" whose memory is that of the host, for machines without one.

Its arrays cannot be read by accident, and its exchange buffers are files in shared memory, which other
processes really open: what is tested with it is all but the driver of CUDA.

Components for processes of their own call `install` first, when `CHAINRULE_FAKE_GPU` is set.
"""

import contextlib
import ctypes
import itertools
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from chainrule._device import DeviceLibrary
from chainrule._device_exchange import ExchangeDevice
from chainrule._errors import DecodeError, StorageError

UUID = "6f8a1c52-0d0e-4b6b-9a5b-2f1d3c4b5a69"
MEMORY = Path("/dev/shm")
PREFIX = "chainrule-fake-gpu-"
STREAM = 17


class DeviceArray:
    """An array that the host must not read."""

    def __init__(self, memory):
        self._memory = memory

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    nbytes = property(lambda self: self._memory.nbytes)

    @property
    def __cuda_array_interface__(self):
        place = self.address, False
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "data": place}

    def __array__(self, *args, **kwargs):
        raise AssertionError("an array on the device was read by the host")

    def __array_function__(self, function, types, args, kwargs):
        if function is np.shape:
            return self.shape
        assert function is np.broadcast_to
        return DeviceArray(np.broadcast_to(args[0]._memory, *args[1:]))

    def __getitem__(self, index):
        return DeviceArray(self._memory[index])

    def __setitem__(self, index, value):
        self._memory[index] = value._memory

    def __mul__(self, other):
        return DeviceArray(self._memory * getattr(other, "_memory", other))

    __rmul__ = __mul__

    def reshape(self, *shape):
        return DeviceArray(self._memory.reshape(*shape))

    def astype(self, dtype):
        return DeviceArray(self._memory.astype(dtype))

    def all(self):
        return self._memory.all()

    def __eq__(self, other):
        return DeviceArray(self._memory == other._memory)

    def __ne__(self, other):
        return DeviceArray(self._memory != other._memory)

    def __and__(self, other):
        return DeviceArray(self._memory & other._memory)

    def __or__(self, other):
        return DeviceArray(self._memory | other._memory)

    def copy(self):
        return DeviceArray(self._memory.copy())

    def get(self):
        return self._memory.copy()

    def sum(self):
        return DeviceArray(self._memory.sum())

    @property
    def contiguous(self):
        return DeviceArray(np.ascontiguousarray(self._memory).reshape(self.shape))

    @property
    def address(self):
        return self._memory.ctypes.data


class FakeLibrary(DeviceLibrary):
    def __init__(self):
        self.streams, self.uploads, self.views = [], 0, 0

    def is_usable(self):
        return True

    def holds(self, value):
        return isinstance(value, DeviceArray)

    def view(self, array):
        raise AssertionError("only arrays of this library are used")

    def view_buffer(self, buffer):
        self.views += 1
        return DeviceArray(np.asarray(buffer))

    def from_host(self, array):
        self.uploads += 1
        return DeviceArray(np.array(array))

    def empty(self, shape, dtype):
        return DeviceArray(np.empty(shape, dtype))

    def contiguous(self, array):
        return array.contiguous

    def address(self, array):
        return array.address

    def stream(self):
        return self.streams[-1] if self.streams else 0

    def held_bytes(self):
        return 1000

    @contextlib.contextmanager
    def running_on(self, stream):
        self.streams.append(stream)
        yield

    def let_default_stream_wait(self):
        pass

    def wait_for_default_stream(self):
        pass


class FakeDevice(ExchangeDevice):
    """A GPU of so many bytes."""

    total_bytes = 1 << 28

    def __init__(self, uuid=UUID):
        self.uuid = uuid
        self.copies, self.waits = 0, 0
        self._numbers = itertools.count()
        self._mapped = {}

    def allocate(self, nbytes):
        if nbytes > self.total_bytes:
            raise StorageError("The GPU has no memory left.", code="device_failed")
        path = MEMORY / f"{PREFIX}{os.getpid()}-{next(self._numbers)}"
        path.write_bytes(bytes(nbytes))
        return self._map(path)[0]

    def free(self, address):
        path, *_ = self._mapped.pop(address)
        path.unlink()

    def export(self, address):
        return self._mapped[address][0].name.encode().ljust(64, b"\0")

    def open(self, handle):
        path = MEMORY / handle.rstrip(b"\0").decode(errors="replace")
        if not path.name.startswith(PREFIX) or not path.exists():
            raise DecodeError("There is no such buffer.", code="bad_device_handle")
        return self._map(path)

    def close(self, address):
        del self._mapped[address]

    def copy(self, target, source, nbytes, stream):
        self.copies += 1
        ctypes.memmove(target, source, nbytes)

    def synchronize(self, stream):
        self.waits += 1

    def _map(self, path):
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        self._mapped[address] = path, memory, view
        return address, len(memory)

    @property
    def allocations(self):
        """The addresses of the buffers that this process has open, its own included."""
        return set(self._mapped)


def buffers_of(pid):
    """The exchange buffers that a process has made and not freed."""
    return sorted(MEMORY.glob(f"{PREFIX}{pid}-*"))


def forget_buffers():
    """Remove the buffers of this process and of those that have ended, as the driver of a GPU does."""
    for path in MEMORY.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)


def install(replace=setattr, uuid=UUID):
    """Give this process a GPU; the library and the device."""
    import chainrule.client._devices as client
    import chainrule.runtime._component._devices as runtime
    import chainrule.serve._devices as serve
    from chainrule import _device

    library, device = FakeLibrary(), FakeDevice(uuid)
    for module in (_device, runtime):
        replace(module, "library_for", lambda framework: library)
    replace(client, "loaded_library", lambda: library)
    for module in (client, serve):
        replace(module, "exchange_device", lambda: device)
    return library, device


def hand_over_buffers(replace):
    """Let compiled programs on the CPU hand over their buffers, as they do on a GPU."""
    from chainrule._jaxpr import _device_call

    real = _device_call.buffer_callback
    if real is None:
        pytest.skip("this JAX has no buffer_callback")

    class Context:
        stream = STREAM

    def with_stream(callback, types):
        return real(lambda _, results, *operands: callback(Context(), results, *operands), types)

    replace(_device_call, "buffer_callback", with_stream)
    replace("chainrule.bridge._primitive.hands_over_device_memory", lambda ctx: True)

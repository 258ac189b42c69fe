"""Arrays of NumPy, torch and CuPy, on the host and in the memory of a GPU.

    is_on_device(value)     whether a value is an array in the memory of a GPU
    to_host(value)          the same numbers as a NumPy array
    dtype_of, cast, broadcast_to, fill
                            the same for arrays on the host and on a device
    same_numbers(a, b)      whether two arrays on a GPU are equal
    own_copy(tree)          the same nested data with a copy of every array
    library_for(framework), loaded_library()
                            what makes, copies and orders such arrays: torch or CuPy

Copies: the caller and the author of a component never share memory. An author gets copies of what the caller
passed, and the caller gets copies of what the author returned. Both may then keep, overwrite and share their
arrays, and the other never sees a change. An array is copied once, where it crosses from one to the other:
inputs while they are validated (`runtime._schema._validation`), results at the end of `LocalComponent.call`.
Where one of the two is in another process, the copy into memory of this process is that copy.
Code that calls an author's function several times with the same inputs (`runtime._derivatives`) makes a copy
for every call.

Streams: a GPU runs what is put on one stream in order, and different streams at the same time. `running_on`
lets code run on the stream of XLA, behind what makes its operands and before what reads its results. Code
that uses CUDA's default stream instead, or a stream that waits for it (as those of CuPy and of CUDA's runtime
do unless told otherwise), is ordered by two events (`let_default_stream_wait`, `wait_for_default_stream`).
Streams that do not wait for the default stream (those of `torch.cuda.Stream`) are ordered by their owner,
with `wait_stream`, as torch documents it.
"""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from chainrule._codec import dtype_from_name
from chainrule._trees import map_leaves

_IMMUTABLE = (str, bytes, int, float, complex, type(None), np.generic)


def is_on_device(value: Any) -> bool:
    """Whether a value is an array in the memory of a GPU."""
    # A tensor that requires a gradient refuses to show its interface.
    return value.is_cuda if is_tensor(value) else hasattr(value, "__cuda_array_interface__")


def is_tensor(value: Any) -> bool:
    """Whether a value is an array of torch, on any device; without importing torch."""
    return hasattr(value, "untyped_storage")


def to_host(value: Any) -> Any:
    """A NumPy array of a tensor or of an array on a device; anything else as it is."""
    if is_tensor(value):
        return _as_numpy(_on_host(value.detach().resolve_conj().resolve_neg()))
    return value.get() if is_on_device(value) and hasattr(value, "get") else value


def dtype_of(array: Any) -> np.dtype[Any]:
    """The dtype of an array, in NumPy's terms."""
    return array.dtype if isinstance(array.dtype, np.dtype) else _numpy_dtype(array.dtype)


@cache
def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of NumPy for one of torch."""
    return dtype_from_name(str(dtype).removeprefix("torch."))


def broadcast_to(array: Any, shape: tuple[int, ...]) -> Any:
    """A view of an array with repeated axes."""
    return array.expand(shape) if is_tensor(array) else np.broadcast_to(array, shape)


def fill(target: Any, value: Any) -> None:
    """Copy an array into another one of its shape, wherever the two are."""
    if isinstance(target, np.ndarray):
        target[...] = value if isinstance(value, np.ndarray) else to_host(value)
    elif is_tensor(target):
        target.copy_(value if is_tensor(value) else tensor_of(value))
    elif is_on_device(target) and not is_on_device(value):
        target[...] = library_for("cupy").from_host(to_host(value))
    else:
        target[...] = value


def same_numbers(left: Any, right: Any) -> bool:
    """Whether two arrays on a GPU agree in dtype, shape and every number, NaN included; waits for them."""
    if type(left) is not type(right) or left.dtype != right.dtype or left.shape != right.shape:
        return False
    # Only NaN differs from itself; two of them count as the same here.
    equal = (left == right) | ((left != left) & (right != right))
    return bool(equal.all())


def cast(array: Any, dtype: np.dtype[Any]) -> Any:
    """An array in another dtype, where it is."""
    if is_tensor(array):
        return array.to(getattr(_torch(), dtype.name))
    return array.astype(dtype)


def tensor_of(value: Any) -> Any:
    """A tensor on the host with memory of its own, of anything that NumPy can read."""
    torch = _torch()
    array = np.asarray(value)
    # torch reads no other byte order and no negative strides.
    own = np.array(array, array.dtype.newbyteorder("="), order="C")
    if own.dtype.name != "bfloat16":
        return torch.as_tensor(own)
    return torch.as_tensor(own.view(np.int16)).view(torch.bfloat16)


def own_copy(tree: Any) -> Any:
    """The same tree with a writable copy of every array of NumPy, torch or a GPU in it.

    Dictionaries, lists, tuples, models and dataclasses are rebuilt; other objects are shared.
    """
    kind = type(tree)
    if (
        kind is dict
    ):  # most results are dictionaries of arrays: without a general walk they take half the time
        return {key: own_copy(child) for key, child in tree.items()}
    return tree.copy() if kind is np.ndarray else map_leaves(_own_copy_of_leaf, tree)


def _own_copy_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, _IMMUTABLE):
        return leaf
    if is_dataclass(leaf) and not isinstance(leaf, type):
        twin = copy.copy(leaf)
        for field in fields(leaf):
            # Past `__setattr__`, which frozen classes forbid.
            object.__setattr__(twin, field.name, own_copy(getattr(leaf, field.name)))
        return twin
    return own_copy_of_array(leaf)


def own_copy_of_array(leaf: Any) -> Any:
    """A copy of an array whose memory can be written to; any other value itself."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    # `clone` is torch's, on every device. CuPy and other arrays of a GPU have `copy`.
    if is_tensor(leaf):
        return leaf.clone()
    if is_on_device(leaf) and hasattr(leaf, "copy"):
        return leaf.copy()
    return leaf


def has_cuda_array_interface(value: Any) -> bool:
    """Whether a value describes device memory; component files import it from the peer's `cuda.ipc`."""
    return hasattr(value, "__cuda_array_interface__")


def _as_numpy(tensor: Any) -> Any:
    """A tensor on the host as an array in the same memory."""
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    # torch knows bfloat16 and NumPy's stand-in for it does not know torch: the same bits, on both sides.
    return tensor.view(_torch().int16).numpy().view(dtype_from_name("bfloat16"))


def _on_host(tensor: Any) -> Any:
    """A tensor on the host; from a GPU it comes through pinned memory, which a GPU writes to directly."""
    if not tensor.is_cuda:
        return tensor
    return _pinned_like(tensor).copy_(tensor)


def _pinned_like(tensor: Any) -> Any:
    """Memory of the host that a GPU reads and writes directly; torch gives it out again when it is unused."""
    return _torch().empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def _torch() -> Any:
    return importlib.import_module("torch")


class DeviceLibrary(ABC):
    """A library that holds arrays on a GPU."""

    @abstractmethod
    def is_usable(self) -> bool:
        """Whether there is a GPU that it can use."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value is an array of this library on a GPU."""

    @abstractmethod
    def view(self, array: Any) -> Any:
        """An array in the memory of an array with `__dlpack__`, behind what its owner still does to it."""

    @abstractmethod
    def view_buffer(self, buffer: Any) -> Any:
        """An array in the memory of a buffer of XLA, on whose stream this library works already."""

    @abstractmethod
    def from_host(self, array: Any) -> Any:
        """A copy of a NumPy array on the GPU."""

    @abstractmethod
    def running_on(self, stream: int) -> Any:
        """A context in which this library works on a CUDA stream."""

    @abstractmethod
    def let_default_stream_wait(self) -> None:
        """Let later work on the default stream come after what is on the current stream now."""

    @abstractmethod
    def wait_for_default_stream(self) -> None:
        """Let later work on the current stream come after what is on the default stream now."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array on the GPU, of any numbers."""

    @abstractmethod
    def contiguous(self, array: Any) -> Any:
        """An array itself, or a copy whose numbers follow each other in memory."""

    @abstractmethod
    def address(self, array: Any) -> int:
        """Where the numbers of an array begin."""

    @abstractmethod
    def stream(self) -> int:
        """The CUDA stream on which this library works in this thread."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Memory of the GPU that this library has, used or not."""

    @contextmanager
    def staged(self, targets: Sequence[Any]) -> Iterator[list[Any]]:
        """Arrays on the host for some arrays on the GPU, into which they are copied in the end."""
        arrays = [np.empty(target.shape, dtype_of(target)) for target in targets]
        yield arrays
        for target, array in zip(targets, arrays, strict=True):
            fill(target, array)

    def from_anywhere(self, value: Any) -> Any:
        """An array of this library for an array of another one, or of the host."""
        if self.holds(value):
            return value
        return self.view(value) if is_on_device(value) else self.from_host(to_host(value))


class _OrderedStream(NamedTuple):
    """A stream of XLA, with what orders it and the default stream.

    To wait for an event is to wait for what it recorded last, so one event can be recorded again at once. If
    two threads use one stream at the same time, the one waits for what the other has recorded later on the
    same stream, which includes its own.

    Attributes:
        stream: torch's name of it.
        before: what the default stream waits for.
        after: what this stream waits for.
    """

    stream: Any
    before: Any
    after: Any


class _TorchLibrary(DeviceLibrary):
    def __init__(self) -> None:
        self._torch = _torch()
        # XLA has few streams, and uses them again. Its threads have a new state of Python in each call, so
        # nothing is kept from call to call by thread.
        self._streams: dict[int, _OrderedStream] = {}
        self._of_thread = threading.local()

    def is_usable(self) -> bool:
        return self._torch.cuda.is_available()

    def holds(self, value: Any) -> bool:
        return is_tensor(value) and value.is_cuda

    def view(self, array: Any) -> Any:
        return self._torch.from_dlpack(array)

    def view_buffer(self, buffer: Any) -> Any:
        return self._torch.from_dlpack(buffer.__dlpack__())

    def from_host(self, array: Any) -> Any:
        return tensor_of(array).to("cuda")

    @contextmanager
    def running_on(self, stream: int) -> Iterator[None]:
        given = self._streams.get(stream)
        if given is None:
            cuda = self._torch.cuda
            made = _OrderedStream(cuda.ExternalStream(stream), cuda.Event(), cuda.Event())
            given = self._streams.setdefault(stream, made)
        # The same in a fifth of the time where torch has it, from 2.6 on.
        streams = getattr(self._torch, "accelerator", self._torch.cuda)
        before = streams.current_stream()
        streams.set_stream(given.stream)
        self._of_thread.stream = given
        try:
            yield
        finally:
            self._of_thread.stream = None
            streams.set_stream(before)

    @contextmanager
    def staged(self, targets: Sequence[Any]) -> Iterator[list[Any]]:
        tensors = [_pinned_like(target) for target in targets]
        yield [_as_numpy(tensor) for tensor in tensors]
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)  # torch reuses the memory after the copy only

    def let_default_stream_wait(self) -> None:
        current: _OrderedStream | None = getattr(self._of_thread, "stream", None)
        if current is not None:
            current.before.record(current.stream)
            current.before.wait(self._default)

    def wait_for_default_stream(self) -> None:
        current: _OrderedStream | None = getattr(self._of_thread, "stream", None)
        if current is not None:
            current.after.record(self._default)
            current.after.wait(current.stream)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype.name), device="cuda")

    def contiguous(self, array: Any) -> Any:
        return self.from_anywhere(array).detach().resolve_conj().resolve_neg().contiguous()

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def stream(self) -> int:
        return self._torch.cuda.current_stream().cuda_stream

    def held_bytes(self) -> int:
        return self._torch.cuda.memory_reserved()

    @cached_property
    def _default(self) -> Any:
        return self._torch.cuda.default_stream()


class _CupyLibrary(DeviceLibrary):
    def __init__(self) -> None:
        self._cupy = importlib.import_module("cupy")
        self._events: dict[tuple[int, int], Any] = {}  # as those of `_OrderedStream`

    def is_usable(self) -> bool:
        try:
            return self._cupy.cuda.runtime.getDeviceCount() > 0
        except self._cupy.cuda.runtime.CUDARuntimeError:  # there is no driver
            return False

    def holds(self, value: Any) -> bool:
        return isinstance(value, self._cupy.ndarray)

    def view(self, array: Any) -> Any:
        return self._cupy.from_dlpack(array)

    def view_buffer(self, buffer: Any) -> Any:
        return self._cupy.from_dlpack(buffer)

    def from_host(self, array: Any) -> Any:
        return self._cupy.asarray(array)

    def running_on(self, stream: int) -> Any:
        known = self._cupy.cuda.Stream
        if hasattr(known, "from_external"):  # CuPy 14
            return known.from_external(_Stream(stream))
        return self._cupy.cuda.ExternalStream(stream)

    def let_default_stream_wait(self) -> None:
        self._order(self._cupy.cuda.get_current_stream(), self._cupy.cuda.Stream.null)

    def wait_for_default_stream(self) -> None:
        self._order(self._cupy.cuda.Stream.null, self._cupy.cuda.get_current_stream())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self._cupy.empty(shape, dtype)

    def contiguous(self, array: Any) -> Any:
        return self._cupy.ascontiguousarray(self.from_anywhere(array))

    def address(self, array: Any) -> int:
        return array.data.ptr

    def stream(self) -> int:
        return self._cupy.cuda.get_current_stream().ptr

    def held_bytes(self) -> int:
        return self._cupy.get_default_memory_pool().total_bytes()

    def _order(self, first: Any, then: Any) -> None:
        if first.ptr == then.ptr:
            return
        key = first.ptr, then.ptr
        event = self._events.get(key)
        if event is None:
            event = self._events.setdefault(key, self._cupy.cuda.Event(disable_timing=True))
        event.record(first)
        then.wait_event(event)


class _Stream:
    """A stream that another library made, in CUDA's protocol for Python."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


def loaded_library() -> DeviceLibrary | None:
    """A library that this program has imported and that can use a GPU; none is imported for it."""
    for name in ("torch", "cupy"):
        if name in sys.modules and _is_usable(library_for(name)):
            return library_for(name)
    return None


@cache
def _is_usable(library: DeviceLibrary) -> bool:
    """Whether there is a GPU, which does not change while a program runs; calls ask again and again."""
    return library.is_usable()


@cache
def library_for(framework: str) -> DeviceLibrary:
    """The library that holds the arrays of a framework on a GPU.

    That is torch for `"torch"`, CuPy for `"cupy"`, and for any other one CuPy where it is installed, else
    torch.

    Raises:
        ModuleNotFoundError: the library is not installed.
    """
    if framework == "torch":
        return _TorchLibrary()
    if framework == "cupy":
        return _CupyLibrary()
    try:
        return _CupyLibrary()
    except ModuleNotFoundError:
        return _TorchLibrary()

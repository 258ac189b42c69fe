"""When exchange buffers are used again, and when they are freed."""

import types

import numpy as np
import pytest

from chainrule import _device_exchange
from chainrule._device_exchange import (
    MAX_IDLE_S,
    BufferPool,
    Exchange,
    OpenBuffers,
    Place,
    Room,
)
from chainrule.errors import DecodeError, StorageError
from device.fake import DeviceArray, FakeDevice, FakeLibrary


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(s=1000.0)
    monkeypatch.setattr(_device_exchange, "time", types.SimpleNamespace(monotonic=lambda: now.s))
    return now


@pytest.fixture
def device():
    made = FakeDevice()
    yield made
    for address in made.allocations:
        made.free(address)


def test_a_buffer_that_was_given_back_is_used_again(device):
    pool = BufferPool(device, 0.5)
    first = pool.take(100_000)
    assert pool.take(100_000) is not first
    pool.give_back(first)
    assert pool.take(90_000) is first


def test_a_small_array_does_not_take_a_large_buffer(device):
    pool = BufferPool(device, 0.5)
    large = pool.take(10_000_000)
    pool.give_back(large)
    assert pool.take(10) is not large


def test_the_share_is_kept(device):
    pool = BufferPool(device, 0.01)
    nbytes = device.total_bytes // 150
    first = pool.take(nbytes)
    assert pool.take(nbytes) is None
    assert pool.held_bytes <= device.total_bytes * 0.01
    pool.give_back(first)
    assert pool.take(nbytes) is first
    assert BufferPool(device, 0.0).take(1) is None
    assert BufferPool(device, 10.0).take(2 * device.total_bytes) is None  # the GPU has not so much


def test_memory_without_a_handle_is_freed(device, monkeypatch):
    def refuse(address):
        raise StorageError("cuIpcGetMemHandle of CUDA's driver failed with 1 (invalid argument).")

    monkeypatch.setattr(device, "export", refuse)
    pool = BufferPool(device, 0.5)
    assert pool.take(100_000) is None
    assert pool.held_bytes == 0
    assert not device.allocations


def test_no_buffer_is_freed_while_a_receiver_may_have_it_open(device, clock):
    pool, opened = BufferPool(device, 0.5), OpenBuffers(FakeDevice())
    buffer = pool.take(100)
    opened.address(Place(device.uuid, buffer.handle, 0, buffer.size), 100)
    pool.give_back(buffer)
    clock.s += MAX_IDLE_S
    pool.free_old()
    assert pool.held_bytes == buffer.size  # the receiver looks now and then only
    opened.close_unused()
    assert len(opened) == 0
    clock.s += 20 * MAX_IDLE_S
    pool.free_old()
    assert pool.held_bytes == 0
    assert not device.allocations


def test_what_is_used_stays_open(device, clock):
    pool, opened = BufferPool(device, 0.5), OpenBuffers(FakeDevice())
    buffer = pool.take(100)
    place = Place(device.uuid, buffer.handle, 0, buffer.size)
    for _ in range(5):
        clock.s += MAX_IDLE_S - 1
        opened.address(place, 100)
        opened.close_unused()
        assert len(opened) == 1


def test_a_retired_buffer_is_kept_for_minutes(device, clock):
    pool = BufferPool(device, 0.5)
    buffer = pool.take(100)
    pool.retire(buffer)
    clock.s += 60
    assert pool.take(100) is not buffer
    assert buffer.address in device.allocations
    clock.s += 600
    pool.free_old()
    assert buffer.address not in device.allocations


def test_the_room_of_a_caller_is_not_left(device):
    caller = Exchange(device, FakeLibrary(), 0.5)
    worker = Exchange(FakeDevice(), FakeLibrary(), 0.5)
    buffer = caller.pool.take(1000)
    place = Place(device.uuid, buffer.handle, 0, 1000)
    room = Room(worker, Place.parse_room(place.as_room()))
    arrays = [DeviceArray(np.full(60, number, np.float32)) for number in range(5)]
    written = [room.write(array) for array in arrays]
    assert [each is None for each in written] == [False, False, False, True, True]
    for number, each in enumerate(written[:3]):
        found = caller.read(each, own=buffer)
        np.testing.assert_array_equal(found.get(), np.full(60, number))
    assert Room(worker, place._replace(device="other")).write(arrays[0]) is None
    # A room that says that it is larger than its buffer.
    claimed = Room(worker, place._replace(size=10**9))
    with pytest.raises(DecodeError, match="a buffer of"):
        claimed.write(DeviceArray(np.zeros(10**5, np.float32)))
    worker.opened.close_unused(0)


def test_no_copy_is_left_behind_when_arrays_are_empty_or_strided(device):
    one, other = Exchange(device, FakeLibrary(), 0.5), Exchange(FakeDevice(), FakeLibrary(), 0.5)
    for memory in (
        np.zeros((0, 3), np.float32),
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.float32(5),
    ):
        buffer = one.pool.take(1000)
        written = one.write(DeviceArray(np.asarray(memory)), buffer)
        found = other.read(written, once=True)
        np.testing.assert_array_equal(found.get(), memory)
        assert found.dtype == memory.dtype
        assert len(other.opened) == 0

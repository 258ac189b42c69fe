"""How CUDA's driver is called, with a library that has its functions and no GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from chainrule._device_exchange import CudaDevice
from chainrule.errors import DecodeError, StorageError

STREAM = 0x7F0000000011


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("the library is built with gcc, which is not here")
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("driver.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return CudaDevice(str(library))


def test_the_gpu(device):
    assert device.uuid == "00102030-4050-6070-8090-a0b0c0d0e0f0"
    assert device.total_bytes == 1 << 30


def test_buffers_are_made_opened_copied_closed_and_freed(device):
    mine, other = device.allocate(100), device.allocate(100)
    handle = device.export(other)
    assert len(handle) == 64
    address, size = device.open(handle)
    assert (address, size) == (other, 100)
    ctypes.memmove(mine, bytes(range(100)), 100)
    device.copy(address, mine, 100, STREAM)
    device.synchronize(STREAM)
    assert ctypes.string_at(other, 100) == bytes(range(100))
    device.close(address)
    device.free(other)
    device.free(mine)


def test_what_the_driver_refuses(device):
    with pytest.raises(StorageError, match=r"cuMemAlloc_v2 .* failed with 2 \(out of memory\)"):
        device.allocate(1 << 40)
    with pytest.raises(DecodeError, match="cannot open GPU memory") as caught:
        device.open(bytes(64))
    assert caught.value.code == "bad_device_handle"
    with pytest.raises(StorageError, match="cuStreamSynchronize"):
        device.synchronize(1)


def test_there_is_no_driver():
    with pytest.raises(OSError, match="libcuda-of-nobody"):
        CudaDevice("libcuda-of-nobody.so.1")

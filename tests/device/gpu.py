"""What the tests on a GPU share."""

import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule._device import library_for, to_host
from chainrule._device_exchange import exchange_device
from device.fake import MEMORY, PREFIX, UUID, forget_buffers, install

SOURCE = Path(__file__).with_name("exchanged.py")
ROOT = SOURCE.parents[1]


def gpus():
    return [device for device in jax.devices() if device.platform in ("gpu", "cuda", "rocm")]


ON_GPU = bool(gpus())
needs_gpu = pytest.mark.skipif(
    not gpus(),
    reason="jax.devices() has no GPU here (run with JAX_PLATFORMS=cuda on a GPU machine)",
)


def points(size, start=0.0, stop=3.0, dtype=jnp.float32):
    with jax.default_device(gpus()[0]):
        return jnp.linspace(start, stop, size, dtype=dtype)


class Gpu:
    """What the tests do on a GPU."""

    def __init__(self, library, device):
        self.library, self.device = library, device

    def put(self, array):
        return self.library.from_host(np.asarray(array, np.float32))

    def get(self, array):
        assert self.library.holds(array)
        return to_host(array)

    @property
    def used_bytes(self):
        """Memory that all processes have on the GPU."""
        if not ON_GPU:
            return sum(path.stat().st_size for path in MEMORY.glob(f"{PREFIX}*"))
        free, total = importlib.import_module("torch").cuda.mem_get_info()
        return total - free


@contextlib.contextmanager
def gpu_for_tests():
    """The GPU, or the fake one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if ON_GPU:
            pytest.importorskip("torch")
            pytest.importorskip("cupy")  # the component of the other process gets its arrays
            yield Gpu(library_for("torch"), exchange_device())
            return
        patch.setenv("CHAINRULE_FAKE_GPU", UUID)
        yield Gpu(*install(patch.setattr))
        forget_buffers()


_SERVE = """
import sys
from chainrule.serve import serve
ready = lambda url: print(url, flush=True)
serve(sys.argv[1], port=0, workers=int(sys.argv[2]), grace_s=1, umbridge=True, on_ready=ready)
"""


@contextlib.contextmanager
def serving(workers=1):
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(SOURCE), str(workers)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(300)
        process.stdout.close()

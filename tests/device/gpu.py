"""What the tests on a GPU share."""

import jax
import jax.numpy as jnp
import pytest


def gpus():
    return [device for device in jax.devices() if device.platform in ("gpu", "cuda", "rocm")]


needs_gpu = pytest.mark.skipif(
    not gpus(),
    reason="jax.devices() has no GPU here (run with JAX_PLATFORMS=cuda on a GPU machine)",
)


def points(size, start=0.0, stop=3.0, dtype=jnp.float32):
    with jax.default_device(gpus()[0]):
        return jnp.linspace(start, stop, size, dtype=dtype)

"""Host components in programs on a GPU: the arrays of a call come from the device and go back to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import apply_component, component_errors, from_callable
from chainrule.runtime import Array, Differentiable, Float32, component
from device.gpu import needs_gpu, points

torch = pytest.importorskip("torch")


pytestmark = needs_gpu

Vector = Differentiable[Array[("n",), Float32]]
SIZES = (10_000, 100_000, 1_000_000)


@component(derivatives="finite")
def in_numpy(x: Vector) -> Vector:
    y = np.sin(2 * x) + 1
    x[...] = np.nan
    return y


@component(framework="torch")
def in_torch(x: Vector) -> Vector:
    return torch.sin(2 * x) + 1


def _overwriting(x):
    x *= 2
    np.sin(x, out=x)
    x += 1
    return x


callable_ = from_callable(
    _overwriting,
    jvp=lambda primals, tangents: 2 * np.cos(2 * primals[0]) * tangents[0],
    vjp=lambda primals, cotangent: (2 * np.cos(2 * primals[0]) * cotangent,),
    abstract=lambda x: x,
)

HOSTS = {
    "numpy": lambda x: apply_component(in_numpy, {"x": x})["result"],
    "torch": lambda x: apply_component(in_torch, {"x": x})["result"],
    "from_callable": callable_,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("host", HOSTS)
def test_a_compiled_program_is_called_many_times(host, size):
    program = jax.jit(lambda x: (HOSTS[host](x), (x * x).sum()))
    x = points(size)
    held = np.array(x)
    results = []
    for number in range(12):
        y, total = program(x + number)
        results.append(y)
        np.testing.assert_allclose(total, ((held + number) ** 2).sum(), rtol=1e-3)
    for number, y in enumerate(results):
        expected = np.sin(2 * (held + np.float32(number))) + 1
        np.testing.assert_allclose(y, expected, atol=1e-4)
        assert y.devices() == x.devices()
    np.testing.assert_array_equal(x, held)


@pytest.mark.parametrize("host", ["torch", "from_callable"])
def test_gradients(host):
    gradient = jax.jit(jax.grad(lambda x: HOSTS[host](x).sum()))
    x = points(10_000)
    for _ in range(5):
        np.testing.assert_allclose(gradient(x), 2 * np.cos(2 * np.asarray(x)), atol=1e-4)


@pytest.mark.parametrize("host", HOSTS)
def test_eager_calls_and_batches(host):
    x = points(10_000)
    expected = np.sin(2 * np.asarray(x)) + 1
    for _ in range(3):
        np.testing.assert_allclose(HOSTS[host](x), expected, atol=1e-4)
        batch = jax.jit(jax.vmap(HOSTS[host]))(jnp.stack([x, x]))
        np.testing.assert_allclose(batch, [expected] * 2, atol=1e-4)


def test_errors():
    def fail(x):
        raise ArithmeticError("no convergence")

    program = jax.jit(from_callable(fail, abstract=lambda x: x))
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="no convergence"), component_errors():
            jax.block_until_ready(program(points(10_000)))

"""CuPy components, and plain functions of device arrays, in programs of JAX on the same GPU."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule import apply_component, component
from chainrule.runtime import Array, Differentiable, Float32, WithResiduals, load_component
from device.gpu import needs_gpu, points

cupy = pytest.importorskip("cupy")
pytestmark = needs_gpu

Vector = Differentiable[Array[("n",), Float32]]


class InputSchema(BaseModel):
    x: Vector


class OutputSchema(BaseModel):
    y: Vector


class Module:
    """Wave, with derivatives by hand and residuals."""

    InputSchema = InputSchema
    OutputSchema = OutputSchema
    forward_passes = 0

    def __init__(self, framework):
        self.framework, self.device = framework, "cuda"

    def apply(self, inputs):
        assert isinstance(inputs.x, cupy.ndarray)
        self.forward_passes += 1
        return WithResiduals(OutputSchema(y=cupy.sin(2 * inputs.x) + 1), 2 * cupy.cos(2 * inputs.x))

    def jacobian_vector_product(self, inputs, jvp_inputs, jvp_outputs, tangent_vector, residuals):
        return {"y": residuals * tangent_vector["x"]}

    def vector_jacobian_product(self, inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
        assert isinstance(residuals, cupy.ndarray)
        return {"x": residuals * cotangent_vector["y"]}


def make(framework):
    author, module = Module(framework), types.ModuleType("wave")
    for name in dir(author):
        if not name.startswith("_"):
            setattr(module, name, getattr(author, name))
    return author, load_component(module)


@pytest.mark.parametrize("framework", ["cupy", "device"])
def test_modules_with_derivatives_by_hand(framework):
    module, loaded = make(framework)

    def f(x):
        return apply_component(loaded, {"x": x}, infer_by_evaluation=True)["y"]

    x = points(2000)
    program = jax.jit(jax.value_and_grad(lambda x: (f(x) ** 2).sum()))
    before = module.forward_passes
    for number in range(1, 5):
        value, slope = program(x * number)
        expected = jax.value_and_grad(lambda x: ((jnp.sin(2 * x) + 1) ** 2).sum())(x * number)
        np.testing.assert_allclose(value, expected[0], rtol=1e-4)
        np.testing.assert_allclose(slope, expected[1], atol=1e-4)
    assert module.forward_passes - before <= 6  # a pass per call, and what shapes are learnt from
    pushed = jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1])(x)
    np.testing.assert_allclose(pushed, 2 * jnp.cos(2 * x) * x, atol=1e-4)
    batch = jax.jit(jax.vmap(f))(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(batch[1], jnp.sin(4 * x) + 1, atol=1e-4)


def test_functions_with_kernels_of_their_own():
    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void twice(const float* x, float* y, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }""",
        "twice",
    )

    @component(framework="device", device="cuda-only")
    def twice(x: Array[(1000,), Float32]) -> Array[(1000,), Float32]:
        assert hasattr(x, "__dlpack__")
        assert hasattr(x, "__cuda_array_interface__")
        y = cupy.empty(1000, "float32")
        with cupy.cuda.Stream.null:  # CUDA's default stream, as code in C++ uses it
            kernel((4,), (256,), (x, y, np.int32(1000)))
        return y

    program = jax.jit(lambda x: apply_component(twice, {"x": x @ jnp.eye(1000)})["result"] + 1)
    x = points(1000)
    for number in range(50):
        np.testing.assert_allclose(program(x + number), 2 * (x + number) + 1, rtol=1e-5)


def test_finite_differences_of_cupy():
    @component(framework="cupy", derivatives="finite")
    def wave(x: Differentiable[Array[(5,), Float32]]) -> Differentiable[Array[(5,), Float32]]:
        return cupy.sin(2 * x) + 1

    x = points(5)

    def f(x):
        return apply_component(wave, {"x": x})["result"]

    np.testing.assert_allclose(jax.jit(f)(x), jnp.sin(2 * x) + 1, atol=1e-5)
    slope = jax.jit(jax.grad(lambda x: f(x).sum()))(x)
    np.testing.assert_allclose(slope, 2 * jnp.cos(2 * x), atol=2e-2)
    host = wave.apply({"x": np.asarray(x)})["result"]
    assert type(host) is np.ndarray

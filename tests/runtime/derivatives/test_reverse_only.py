"""JAX functions that have a reverse derivative only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.errors import CapabilityError, ComponentError
from chainrule.runtime import Array, Differentiable, Float64, component
from chainrule.runtime.jax_recipes import jax_hessian_vector_product, jax_jvp
from chainrule.runtime.testing import check_gradients

Vector = Differentiable[Array[("n",), Float64]]
X, V = np.array([0.3, 1.0, 2.0]), np.array([1.0, -2.0, 0.5])
PATHS = (["x"], ["result"])


@jax.custom_vjp
def wave(x):
    return x * jnp.sin(x)


def _wave_backward(x, cotangent):
    return ((x * jnp.cos(x) + jnp.sin(x)) * cotangent,)


wave.defvjp(lambda x: (wave(x), x), _wave_backward)


@component(framework="jax")
def waves(x: Vector) -> Vector:
    return wave(x)


SLOPE = X * np.cos(X) + np.sin(X)


def test_a_tangent_is_pushed_with_vjps():
    for _ in range(2):  # the second call knows already
        pushed = waves.jacobian_vector_product({"x": X}, *PATHS, {"x": V})["result"]
        np.testing.assert_allclose(pushed, SLOPE * V, rtol=1e-12)
    batch = waves.jacobian_vector_product({"x": X}, *PATHS, {"x": np.eye(3)}, batched=True)
    np.testing.assert_allclose(batch["result"], np.diag(SLOPE), rtol=1e-12, atol=1e-14)


def test_every_endpoint_that_is_offered_answers():
    hvp = waves.hessian_vector_product({"x": X}, *PATHS, {"result": np.ones(3)}, {"x": V})["x"]
    np.testing.assert_allclose(hvp, (2 * np.cos(X) - X * np.sin(X)) * V, rtol=1e-12)
    report = check_gradients(waves, {"x": X}, show_progress=False)
    assert report.passed, [check.summary for check in report.failures]
    assert not report.left_out
    jacobian = waves.jacobian({"x": X}, *PATHS)["result"]["x"]
    np.testing.assert_allclose(jacobian, np.diag(SLOPE), rtol=1e-12, atol=1e-14)


def test_complex_numbers_and_exact_outputs():
    @jax.custom_vjp
    def turn(x):
        return x**2 * jnp.exp(1j * x)

    # A real input's cotangent is Re(Jᵀu).
    turn.defvjp(
        lambda x: (turn(x), x),
        lambda x, u: (jnp.real((2 * x + 1j * x**2) * jnp.exp(1j * x) * u),),
    )

    @jax.jit
    def apply(inputs):
        return {"z": turn(inputs["x"]), "count": jnp.arange(2)}

    with jax.enable_x64(True):
        pushed = jax_jvp(apply, {"x": X}, {"x"}, {"z", "count"}, {"x": V})
    np.testing.assert_allclose(pushed["z"], (2 * X + 1j * X**2) * np.exp(1j * X) * V, rtol=1e-12)
    np.testing.assert_array_equal(pushed["count"], [0, 0])


def test_a_function_without_second_derivatives_says_so():
    @jax.custom_vjp
    def outer(x):
        return x**3

    @jax.custom_vjp
    def backward(x, cotangent):
        return 3 * x**2 * cotangent

    def refuse(*_):
        raise TypeError("this solver has no second derivative")

    backward.defvjp(lambda x, u: (backward(x, u), None), refuse)
    outer.defvjp(lambda x: (outer(x), x), lambda x, u: (backward(x, u),))

    @component(framework="jax")
    def cube(x: Vector) -> Vector:
        return outer(x)

    with pytest.raises(CapabilityError, match="hvp_from_vjp") as caught:
        cube.hessian_vector_product({"x": X}, *PATHS, {"result": np.ones(3)}, {"x": V})
    assert caught.value.code == "no_second_derivative"
    endpoints = ["jacobian_vector_product", "vector_jacobian_product", "hessian_vector_product"]
    report = check_gradients(cube, {"x": X}, endpoints=endpoints, show_progress=False)
    assert report.passed
    assert [each.endpoint for each in report.left_out] == ["hessian_vector_product"]


def test_a_mistake_of_the_author_is_his_own():
    @component(framework="jax")
    def mistaken(x: Vector) -> Vector:
        return x + "text"

    with pytest.raises(ComponentError, match="raised TypeError"):
        mistaken.jacobian_vector_product({"x": X}, *PATHS, {"x": V})
    with pytest.raises(TypeError):
        jax_hessian_vector_product(
            jax.jit(lambda d: {"y": len(d["x"], 3)}), {"x": X}, {"x"}, {"y"}, {"y": 1.0}, {"x": V}
        )


def test_the_default_adjoint_of_diffrax():
    diffrax = pytest.importorskip("diffrax")

    @component(framework="jax")
    def decay(
        rate: Differentiable[Float64], start: Differentiable[Float64]
    ) -> Differentiable[Float64]:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, k: -k * y), diffrax.Tsit5(), 0.0, 1.0, 0.1, start, args=rate,
            stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9),
        )  # fmt: skip
        return solution.ys[0]

    at, paths = {"rate": 0.7, "start": 2.0}, (["rate", "start"], ["result"])
    pushed = decay.jacobian_vector_product(at, *paths, {"rate": 1.0, "start": -1.0})["result"]
    np.testing.assert_allclose(pushed, -3 * np.exp(-0.7), rtol=1e-6)
    report = check_gradients(decay, at, show_progress=False)
    assert report.passed, [check.summary for check in report.failures]

"""Sows inside and around components that are used in JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule import apply_component, component, from_callable
from chainrule.harvest import grad_wrt, save_intermediates, sow
from chainrule.runtime import Array, Differentiable, Float32

Vector = Differentiable[Array[(None,), Float32]]
X = jnp.array([0.3, -0.7, 1.1])


@component(framework="jax")
def wave(x: Vector) -> Vector:
    return 2.0 * sow(jnp.sin(x), "inside")


def pipeline(x):
    before = sow(x * 3.0, "before")
    return jnp.sum(apply_component(wave, {"x": before})["result"] ** 2)


def test_sows_inside_an_inlined_component_are_found():
    _, found = save_intermediates(jax.grad(pipeline))(X)
    inside = np.sin(3 * X)
    np.testing.assert_allclose(found["inside"]["primal"], inside, rtol=1e-6)
    np.testing.assert_allclose(found["inside"]["cotangent"], 8 * inside, rtol=1e-5)
    expected = 8 * inside * np.cos(3 * X)
    np.testing.assert_allclose(found["before"]["cotangent"], expected, rtol=1e-5)
    np.testing.assert_allclose(grad_wrt(pipeline, "inside")(X)["inside"], 8 * inside, rtol=1e-5)


def test_sows_around_code_on_the_host():
    sine = from_callable(
        lambda x: 2 * np.sin(x),
        vjp=lambda primals, cotangent: (2 * np.cos(primals[0]) * cotangent,),
        abstract=lambda x: x,
    )

    def f(x):
        before = sow(x * 3.0, "before")
        return jnp.sum(sow(sine(before), "after") ** 2)

    gradient, found = save_intermediates(jax.grad(f))(X)
    after = 2 * np.sin(3 * X)
    expected = 2 * after * 2 * np.cos(3 * X)
    np.testing.assert_allclose(found["after"]["primal"], after, rtol=1e-5)
    np.testing.assert_allclose(found["before"]["cotangent"], expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, 3 * expected, rtol=1e-5)


def test_identical_calls_of_a_component_are_still_merged():
    calls = []
    Fixed = Array[(3,), Float32]

    @component
    def counted(x: Fixed) -> Fixed:
        calls.append(1)
        return np.sin(x)

    def f(x):
        first = apply_component(counted, {"x": x})["result"]
        sow(first, "first")
        return first + apply_component(counted, {"x": x})["result"]

    def number_of_calls(function):
        function(X)
        calls.clear()
        jax.block_until_ready(function(X))
        return len(calls)

    assert number_of_calls(save_intermediates(f)) == number_of_calls(jax.jit(f)) == 1

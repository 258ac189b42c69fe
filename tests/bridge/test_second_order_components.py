"""Hessians of components, and batches of vectors in one request."""

import textwrap
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule import apply_component
from chainrule.client import Component
from chainrule.errors import CapabilityError
from chainrule.runtime import Array, Differentiable, Float64, load_component

X = np.array([0.3, -0.7, 1.1])
Vector = Differentiable[Array[("n",), Float64]]


class InputSchema(BaseModel):
    x: Vector


class OutputSchema(BaseModel):
    y: Vector


def make(calls, **endpoints):
    """y = x³ with derivative endpoints that write down the shapes of their vectors."""

    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector, batched=False):
        calls.append(cotangent_vector["y"].shape)
        return {"x": 3 * inputs.x**2 * cotangent_vector["y"]}

    module = ModuleType("cubes")
    module.InputSchema, module.OutputSchema = InputSchema, OutputSchema
    module.apply = lambda inputs: OutputSchema(y=inputs.x**3)
    module.vector_jacobian_product = vjp
    vars(module).update(endpoints)
    return load_component(module)


def hvp(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
    return {"x": 6 * inputs.x * cotangent_vector["y"] * tangent_vector["x"]}


def cubes(component, x, **options):
    return apply_component(component, {"x": x}, **options)["y"]


def test_the_hessian_of_a_component_that_has_the_endpoint():
    component = make([], hessian_vector_product=hvp)
    hessian = jax.jit(jax.hessian(lambda x: jnp.sum(jnp.sin(cubes(component, x)))))(X)
    expected = jax.hessian(lambda x: jnp.sum(jnp.sin(x**3)))(X)
    np.testing.assert_allclose(hessian, expected, rtol=1e-10, atol=1e-12)


def test_without_the_endpoint_differences_have_to_be_asked_for():
    plain = make([])

    def curvature(component):
        return jax.grad(lambda x: jax.grad(lambda x: cubes(component, x).sum())(x).sum())(X)

    with pytest.raises(CapabilityError, match="hessian_vector_product"):
        curvature(plain)
    found = curvature(plain.configured(derive_hvp=True))
    np.testing.assert_allclose(found, 6 * X, rtol=1e-7)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(6, 3)]),
        ({"vmap_method": "sequential"}, [(3,)] * 6),
    ],
)
def test_vectors_of_one_point_share_a_request(options, expected):
    calls = []
    component = make(calls)
    _, pull = jax.vjp(
        lambda x: cubes(component, x, materialize_jacobian=False, **options), jnp.asarray(X)
    )
    batch = np.arange(18.0).reshape(2, 3, 3)
    (found,) = jax.jit(jax.vmap(jax.vmap(pull)))(batch)
    np.testing.assert_allclose(found, 3 * X**2 * batch)
    assert calls == expected


def test_a_large_batch_goes_in_several_requests(monkeypatch):
    monkeypatch.setattr("chainrule.bridge._host._BATCH_BYTES", 4 * 2 * X.nbytes)
    calls = []
    component = make(calls)
    _, pull = jax.vjp(lambda x: cubes(component, x, materialize_jacobian=False), jnp.asarray(X))
    batch = np.arange(30.0).reshape(10, 3)
    np.testing.assert_allclose(jax.vmap(pull)(batch)[0], 3 * X**2 * batch)
    assert calls == [(4, 3), (4, 3), (2, 3)]


class TwoOutputs(BaseModel):
    y: Vector
    z: Vector


def test_vectors_that_stay_the_same_are_repeated():
    """One request for all pairs of cotangents, of which each has one of the two batch axes."""
    calls = []

    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector, batched=False):
        u, w = cotangent_vector["y"], cotangent_vector["z"]
        calls.append((u.shape, w.shape))
        return {"x": 3 * inputs.x**2 * u + 2 * inputs.x * w}

    module = ModuleType("cubes_and_squares")
    module.InputSchema, module.OutputSchema = InputSchema, TwoOutputs
    module.apply = lambda inputs: TwoOutputs(y=inputs.x**3, z=inputs.x**2)
    module.vector_jacobian_product = vjp
    component = load_component(module)

    def f(x):
        outputs = apply_component(component, {"x": x}, materialize_jacobian=False)
        return outputs["y"], outputs["z"]

    def pulled(u, w):
        return jax.vjp(f, jnp.asarray(X))[1]((u, w))[0]

    us, ws = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 3)
    found = jax.vmap(jax.vmap(pulled, (None, 0)), (0, None))(us, ws)
    np.testing.assert_allclose(found, 3 * X**2 * us[:, None] + 2 * X * ws)
    assert calls == [((8, 3), (8, 3))]


def test_batches_that_are_not_vectors_of_one_point_are_fanned_out():
    calls = []
    component = make(calls)
    points, batch = np.stack([X, 2 * X]), np.arange(6.0).reshape(2, 3)

    def pulled(x, u):
        return jax.vjp(lambda x: cubes(component, x, materialize_jacobian=False), x)[1](u)[0]

    np.testing.assert_allclose(jax.vmap(pulled)(points, batch), 3 * points**2 * batch)
    assert calls == [(3,)] * 2
    assert jax.vmap(pulled, (None, 0))(X, np.zeros((0, 3))).shape == (0, 3)


SOURCE = """
import jax.numpy as jnp
from chainrule.runtime import Array, Differentiable, Float32, component

@component(framework="jax")
def energy(x: Differentiable[Array[("n",), Float32]]) -> Differentiable[Float32]:
    return jnp.sum(jnp.sin(x) * x[0])
"""


def test_the_hessian_of_a_jax_component_in_another_process(tmp_path):
    file = tmp_path / "energy.py"
    file.write_text(textwrap.dedent(SOURCE))
    x = jnp.asarray(X, jnp.float32)
    with Component.from_source(f"{file}:energy") as component:
        assert component.capabilities["vector_jacobian_product"].batches
        found = jax.hessian(lambda x: apply_component(component, {"x": x})["result"])(x)
    np.testing.assert_allclose(
        found, jax.hessian(lambda x: jnp.sum(jnp.sin(x) * x[0]))(x), rtol=1e-5
    )

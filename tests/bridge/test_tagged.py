"""What a component sows comes back through `apply_component`, wherever the component runs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import Component, apply_component, save_intermediates
from chainrule.errors import CapabilityError, InputError
from chainrule.runtime import load_component

FILE = Path(__file__).parent / "components" / "tagged_component.py"
X = np.array([0.3, -1.2, 2.0])


@pytest.fixture(scope="module")
def served(tagged_url):
    with Component.from_url(tagged_url) as component:
        yield component


@pytest.fixture(scope="module")
def local():
    return load_component(FILE)


def loss(component, **options):
    def run(x, scale=1.5, weight=2.0):
        outputs = apply_component(component, {"x": x, "scale": scale, "times": 3}, **options)
        return weight * outputs["total"] + jnp.sum(outputs["wave"] ** 2)

    return run


def assert_same(found, expected):
    for each in (found, expected):
        # Integers have no derivative; inlined they have no entry, and zeros from a component.
        for entry in each[1].values():
            for mode in entry:
                if mode != "primal" and isinstance(entry[mode], dict):
                    entry[mode] = {k: v for k, v in entry[mode].items() if k != "count"}
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


TRANSFORMED = {
    "value": lambda f: lambda x: f(x),
    "grad": jax.grad,
    "grad by another argument": lambda f: lambda x: jax.grad(f, argnums=1)(x, 1.5),
    "value_and_grad": jax.value_and_grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),)),
    "jit": jax.jit,
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, s: (c, f(x, s)), 0, jnp.array([1.0, 2.0])),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_served_values_are_those_of_the_inlined_component(served, local, name):
    transform = TRANSFORMED[name]
    expected = save_intermediates(transform(loss(local)))(X)
    found = save_intermediates(transform(loss(served, intermediates=True)))(X)
    assert_same(found, expected)
    assert {"wave", "power", "facts"} == set(found[1])


def test_outputs_are_the_same_and_nothing_is_asked_outside_of_a_capture(served, monkeypatch):
    monkeypatch.setattr(type(served), "tagged_intermediates", None, raising=False)
    quiet, asked = loss(served), loss(served, intermediates=True)
    for transform in (lambda f: f, jax.grad, jax.jit):
        np.testing.assert_array_equal(transform(quiet)(X), transform(asked)(X))


def test_only_what_is_asked_for_comes_back(served):
    _, nothing = save_intermediates(loss(served))(X)
    assert nothing == {}
    _, other = save_intermediates(loss(served, intermediates="other"), tag="other")(X)
    np.testing.assert_allclose(other["peak"]["primal"], (np.sin(X) * 1.5).max())
    _, not_this = save_intermediates(loss(served, intermediates="other"))(X)
    assert not_this == {}


def test_endpoint_of_every_transport(served, local):
    inputs = {"x": X, "scale": 2.0, "times": 2}
    wave = 2 * np.sin(X)
    for component in (served, local):
        values = component.tagged_intermediates(inputs)
        np.testing.assert_allclose(values["wave"]["primal"], wave)
        assert list(values["facts"]["primal"]["count"]) == [0, 1, 2]
        tangents = component.tagged_intermediates(inputs, tangent_vector={"x": np.ones(3)})
        np.testing.assert_allclose(tangents["wave"]["tangent"], 2 * np.cos(X))
        cotangents = component.tagged_intermediates(inputs, cotangent_vector={"total": 1.0})
        np.testing.assert_allclose(cotangents["power"]["cotangent"], np.ones(3))
        np.testing.assert_allclose(cotangents["wave"]["cotangent"], 2 * wave)
        shapes = component.tagged_intermediates(
            {"x": {"shape": [3], "dtype": "float64"}, "scale": {"shape": [], "dtype": "float64"}},
            abstract=True,
        )
        assert shapes["wave"]["primal"] == {"shape": [3], "dtype": "float64"}


def test_bad_requests_are_refused(served, local):
    inputs = {"x": X, "scale": 2.0}
    for component in (served, local):
        with pytest.raises(InputError, match="'times' is not a differentiable"):
            component.tagged_intermediates(inputs, tangent_vector={"times": 1})
        with pytest.raises(InputError, match="tag: expected the text"):
            component.tagged_intermediates(inputs, 3)
        with pytest.raises(InputError, match="neither; found both"):
            component.tagged_intermediates(
                inputs, tangent_vector={"x": X}, cotangent_vector={"total": 1.0}
            )
        with pytest.raises(InputError, match="tangent_vector at 'x'"):
            component.tagged_intermediates(inputs, tangent_vector={"x": np.ones(2)})


def test_component_without_the_endpoint_says_so(served_url):
    with Component.from_url(served_url) as component:

        def run(x):
            return apply_component(component, {"x": x}, intermediates=True)

        with pytest.raises(CapabilityError, match="no endpoint 'tagged_intermediates'"):
            save_intermediates(run)(X)


def test_authors_of_any_framework_can_write_the_endpoint(tmp_path):
    file = tmp_path / "component.py"
    file.write_text(
        """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]


def apply(inputs):
    return {"y": inputs.x**2}


def jacobian(inputs, jac_inputs, jac_outputs):
    return {"y": {"x": np.diag(2 * inputs.x)}}


def tagged_intermediates(inputs, tag, tangent_vector, cotangent_vector, abstract=False):
    if abstract:
        return {"double": {"primal": {"shape": inputs.x.shape, "dtype": "float64"}}}
    entry = {"primal": 2 * inputs.x}
    if tangent_vector is not None:
        entry["tangent"] = 2 * tangent_vector["x"]
    return {"double": entry}
"""
    )
    component = load_component(file)
    assert component.capabilities["tagged_intermediates"].status == "native"

    def run(x):
        return apply_component(component, {"x": x}, intermediates=True)["y"]

    _, found = save_intermediates(lambda x: jax.jvp(run, (x,), (jnp.ones(3),)))(X)
    np.testing.assert_allclose(found["double"]["primal"], 2 * X)
    np.testing.assert_allclose(found["double"]["tangent"], 2 * np.ones(3))

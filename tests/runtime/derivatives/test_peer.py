"""The same calls give the same numbers as tesseract-core."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

pytest.importorskip("tesseract_core.runtime")

from tesseract_core.runtime import Array, Differentiable, Float64
from tesseract_core.runtime import experimental as peer_experimental
from tesseract_core.runtime import jax_recipes as peer_recipes

from chainrule.runtime import experimental, jax_recipes

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


class Inputs(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    k: Differentiable[Array[(), Float64]]


class Outputs(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    s: Differentiable[Array[(), Float64]]


@pytest.fixture
def inputs():
    return Inputs(x=np.array([0.1, 0.7, 1.3]), k=np.float64(2.0))


PATHS = ({"x", "k"}, {"y", "s"})
TANGENT = {"x": np.array([1.0, -1.0, 0.5]), "k": np.float64(0.3)}
COTANGENT = {"y": np.array([0.2, 1.0, -1.0]), "s": np.float64(2.0)}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[path], value)
        else:
            np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-7)


def apply(inputs):
    return Outputs(y=np.sin(inputs.x) * inputs.k, s=(inputs.x**2).sum() * inputs.k)


@pytest.mark.parametrize("algorithm", ["central", "forward"])
def test_finite_differences(inputs, algorithm):
    for name, vector in (("jacobian", ()), ("jvp", (TANGENT,)), ("vjp", (COTANGENT,))):
        ours, theirs = (
            getattr(module, f"finite_difference_{name}")(
                apply, inputs, *PATHS, *vector, algorithm=algorithm
            )
            for module in (experimental, peer_experimental)
        )
        assert_same(ours, theirs)


def test_derived_endpoints(inputs):
    def jacobian(inputs, jac_inputs, jac_outputs):
        return experimental.finite_difference_jacobian(apply, inputs, jac_inputs, jac_outputs)

    for name, vector in (("jvp", TANGENT), ("vjp", COTANGENT)):
        ours, theirs = (
            getattr(module, f"{name}_from_jacobian")(jacobian, inputs, *PATHS, vector)
            for module in (experimental, peer_experimental)
        )
        assert_same(ours, theirs)


def test_recipes(inputs):
    apply_jit = eqx.filter_jit(
        lambda d: {"y": jnp.sin(d["x"]) * d["k"], "s": (d["x"] ** 2).sum() * d["k"]}
    )
    calls = (("jacobian", ()), ("jvp", (TANGENT,)), ("vjp", (COTANGENT,)))
    for name, vector in calls:
        ours, theirs = (
            getattr(module, f"jax_{name}")(apply_jit, inputs, *PATHS, *vector)
            for module in (jax_recipes, peer_recipes)
        )
        assert_same(ours, theirs)

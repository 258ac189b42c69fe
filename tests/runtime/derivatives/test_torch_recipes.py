"""The torch recipes against the closed form and against the JAX recipes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from chainrule._errors import InputError, PathError  # noqa: E402
from chainrule.runtime import jax_recipes as jr  # noqa: E402
from chainrule.runtime import torch_recipes as tr  # noqa: E402

# torch itself still scripts its decompositions when forward mode is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

INPUTS = {"x", "a.b.[0]", "i"}
OUTPUTS = {"y", "k", "l.[0]"}


def make(np_like):
    def apply(d):
        return {
            "y": np_like.sin(d["x"]) * d["a"]["b"][0],
            "k": d["i"] * 2,
            "label": d["mode"],
            "nothing": None,
            "l": [(d["x"] ** 2).sum() * d["c"] * d["a"]["b"][0]],
        }

    return apply


torch_apply, jax_apply = make(torch), make(jnp)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def inputs():
    x = np.arange(3.0)
    x.flags.writeable = False
    return {"x": x, "a": {"b": [np.float64(2.0)]}, "i": np.arange(2), "mode": "m", "c": 1.5}


TANGENT = {"x": np.array([1.0, 2.0, 3.0]), "a.b.[0]": np.float64(0.5), "i": np.zeros(2)}
COTANGENT = {"y": np.array([1.0, -1.0, 0.5]), "k": np.zeros(2), "l.[0]": np.float64(2.0)}


def batch(vector):
    return {path: np.stack([value, -2 * value]) for path, value in vector.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[path], value)
        else:
            assert isinstance(found[path], np.ndarray)
            np.testing.assert_allclose(found[path], value, atol=1e-12)


def test_apply(inputs):
    outputs = tr.torch_apply(torch_apply, inputs)
    np.testing.assert_allclose(outputs["y"], 2 * np.sin(inputs["x"]))
    assert outputs["label"] == "m"
    assert outputs["nothing"] is None


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_jacobian(inputs, mode):
    found = tr.torch_jacobian(torch_apply, inputs, INPUTS, OUTPUTS, mode=mode)
    assert_same(found, jr.jax_jacobian(jax_apply, inputs, INPUTS, OUTPUTS))
    np.testing.assert_allclose(found["y"]["x"], np.diag(2 * np.cos(inputs["x"])), atol=1e-12)


@pytest.mark.parametrize("batched", [False, True])
def test_products(inputs, batched):
    t = batch(TANGENT) if batched else TANGENT
    u = batch(COTANGENT) if batched else COTANGENT
    assert_same(
        tr.torch_jvp(torch_apply, inputs, INPUTS, OUTPUTS, t, batched=batched),
        jr.jax_jvp(jax_apply, inputs, INPUTS, OUTPUTS, t, batched=batched),
    )
    assert_same(
        tr.torch_vjp(torch_apply, inputs, INPUTS, OUTPUTS, u, batched=batched),
        jr.jax_vjp(jax_apply, inputs, INPUTS, OUTPUTS, u, batched=batched),
    )


def test_value_and_vjp(inputs):
    outputs, gradient = tr.torch_value_and_vjp(torch_apply, inputs, INPUTS, OUTPUTS, COTANGENT)
    assert_same(gradient, jr.jax_vjp(jax_apply, inputs, INPUTS, OUTPUTS, COTANGENT))
    np.testing.assert_allclose(outputs["y"], 2 * np.sin(inputs["x"]))
    assert outputs["label"] == "m"


def test_hessian_vector_product(inputs):
    arguments = (inputs, INPUTS, OUTPUTS, COTANGENT, TANGENT)
    assert_same(
        tr.torch_hessian_vector_product(torch_apply, *arguments),
        jr.jax_hessian_vector_product(jax_apply, *arguments),
    )


def test_abstract_evaluation(inputs):
    abstract = inputs | {
        "x": {"shape": [3], "dtype": "float32"},
        "a": {"b": [{"shape": [], "dtype": "float32"}]},
        "i": {"shape": [2], "dtype": "int64"},
    }
    found = tr.torch_abstract_eval(torch_apply, abstract)
    assert found["y"] == {"shape": (3,), "dtype": "float32"}
    assert found["k"] == {"shape": (2,), "dtype": "int64"}
    assert found["label"] == "m"


def test_abstract_evaluation_of_a_model_with_weights():
    model = torch.nn.Linear(3, 2)
    foretold = tr.torch_abstract_eval(
        lambda inputs: {"y": model(inputs["x"])}, {"x": {"shape": [5, 3], "dtype": "float32"}}
    )
    assert foretold == {"y": {"shape": (5, 2), "dtype": "float32"}}


def test_vectors_that_do_not_fit(inputs):
    with pytest.raises(InputError) as caught:
        tr.torch_jvp(torch_apply, inputs, {"x"}, {"y"}, {"x": np.ones(4)})
    assert caught.value.code == "vector_shape_mismatch"


def test_what_is_no_array_cannot_be_differentiated(inputs):
    with pytest.raises(PathError):
        tr.torch_jacobian(torch_apply, inputs, {"mode"}, {"y"})

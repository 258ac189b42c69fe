"""The torch recipes against the closed form and against the JAX recipes."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from chainrule.errors import ComponentError, InputError, PathError  # noqa: E402
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


@pytest.mark.parametrize("derivative", ["jacobian", "jvp", "vjp", "value_and_vjp"])
def test_what_left_torch_has_no_derivative(derivative):
    # 2x at x = 3 is 6; of a number that `item` has read, torch says 0.
    def apply(d):
        return {"y": d["x"].item() ** 2}

    vector = {"jvp": [{"x": 1.0}], "vjp": [{"y": 1.0}], "value_and_vjp": [{"y": 1.0}]}
    function = getattr(tr, f"torch_{derivative}")
    with pytest.raises(ComponentError, match="a float at 'y', which is not a tensor") as caught:
        function(apply, {"x": np.float64(3.0)}, {"x"}, {"y"}, *vector.get(derivative, []))
    assert (caught.value.code, caught.value.path) == ("derivative_lost", "y")


@pytest.mark.parametrize(
    "derivative", ["jacobian", "vjp", "batched vjp", "value_and_vjp", "hessian_vector_product"]
)
def test_what_is_computed_without_gradients_has_no_derivative(derivative):
    def apply(d):
        with torch.no_grad():
            lost = (d["x"] ** 2).sum()
        detached = d["x"].detach() ** 2
        return {"y": lost, "kept": d["x"] ** 3, "detached": detached, "one": torch.ones(())}

    x, ones = {"x": np.array([1.0, 2.0])}, np.ones(2)
    options = {
        "jacobian": lambda out: ([], {"mode": "reverse"}),
        "batched vjp": lambda out: ([{out: np.ones((3, *shape(out)))}], {"batched": True}),
        "hessian_vector_product": lambda out: ([{out: np.ones(shape(out))}, {"x": ones}], {}),
    }
    shape = {"y": (), "kept": (2,), "detached": (2,), "one": ()}.__getitem__
    given = options.get(derivative, lambda out: ([{out: np.ones(shape(out))}], {}))
    function = getattr(tr, f"torch_{derivative.removeprefix('batched ')}")

    def found(out):
        arguments, keywords = given(out)
        result = function(apply, x, {"x"}, {out}, *arguments, **keywords)
        result = result[1] if derivative == "value_and_vjp" else result
        return np.asarray(result[out]["x"] if derivative == "jacobian" else result["x"])

    with pytest.raises(ComponentError, match=r"'y' under `torch\.no_grad") as caught:
        found("y")
    assert (caught.value.code, caught.value.path) == ("derivative_lost", "y")
    assert not found("detached").any()
    assert not found("one").any()
    assert found("kept").any()


def test_numbers_beside_what_is_differentiated():
    def apply(d):
        return {"y": d["x"] ** 2, "constant": 1.0, "count": 2}

    found = tr.torch_jacobian(apply, {"x": np.float64(3.0)}, {"x"}, {"y", "count"})
    assert (found["y"]["x"], found["count"]["x"]) == (6.0, 0.0)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16, ">f4", "float64"], ids=str)
def test_every_floating_dtype_and_byte_order(dtype):
    x = np.array([[1.5, 2.0], [0.25, -1.0]]).astype(dtype)[:, ::-1]
    inputs, native = {"x": x}, x.dtype.newbyteorder("=")
    square = lambda d: {"y": d["x"] ** 2}  # noqa: E731
    slope = (2 * x).astype(native)
    ones = np.ones((2, 2))
    assert tr.torch_apply(square, inputs)["y"].dtype == native
    for found in (
        tr.torch_vjp(square, inputs, {"x"}, {"y"}, {"y": ones})["x"],
        tr.torch_jvp(square, inputs, {"x"}, {"y"}, {"x": ones})["y"],
        tr.torch_jacobian(square, inputs, {"x"}, {"y"})["y"]["x"].sum(axis=(2, 3)).astype(native),
    ):
        assert found.dtype == native
        np.testing.assert_array_equal(found.astype(float), slope.astype(float))
    scalar = tr.torch_vjp(square, {"x": native.type(3.0)}, {"x"}, {"y"}, {"y": 1.0})
    assert (scalar["x"].shape, float(scalar["x"])) == ((), 6.0)


def test_shapes_of_bfloat16():
    shape = {"x": {"shape": (2, 3), "dtype": "bfloat16"}}
    assert tr.torch_abstract_eval(lambda d: {"y": d["x"].sum(0)}, shape) == {
        "y": {"shape": (3,), "dtype": "bfloat16"}
    }


def test_arrays_without_elements_have_a_jacobian():
    found = tr.torch_jacobian(lambda d: {"y": 2 * d["x"]}, {"x": np.zeros((0, 3))}, {"x"}, {"y"})
    assert found["y"]["x"].shape == (0, 3, 0, 3)


class Pair(NamedTuple):
    left: object
    right: object


def test_named_tuples_stay_what_they_are():
    inputs = {"pair": Pair(np.ones(2), np.full(2, 3.0))}
    swap = lambda d: {"pair": Pair(d["pair"].right, 2 * d["pair"].left)}  # noqa: E731
    assert isinstance(tr.torch_apply(swap, inputs)["pair"], Pair)
    found = tr.torch_vjp(swap, inputs, {"pair.left"}, {"pair.right"}, {"pair.right": np.ones(2)})
    assert found["pair.left"].tolist() == [2.0, 2.0]


COMPLEX = {
    "holomorphic": lambda m, z: (1 + 2j) * z**2,
    "to real numbers": lambda m, z: m.abs(z) * m.real(z),
    "from real numbers": lambda m, z: m.real(z) * (2 - 1j),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_derivatives_follow_jax(name):
    function = COMPLEX[name]
    z = np.array([0.3 + 0.4j, -1.0 + 0.2j])
    inputs = {"z": z.real if name == "from real numbers" else z}
    ours = lambda d: {"y": function(torch, d["z"])}  # noqa: E731
    theirs = jax.jit(lambda d: {"y": function(jnp, d["z"])})
    selection = ({"z"}, {"y"})
    np.testing.assert_allclose(
        tr.torch_jacobian(ours, inputs, *selection)["y"]["z"],
        jr.jax_jacobian(theirs, inputs, *selection)["y"]["z"],
        atol=1e-12,
    )
    weights = np.array([1.0, 2.0]) if name == "to real numbers" else np.array([1.0 - 3j, 2j])
    np.testing.assert_allclose(
        tr.torch_vjp(ours, inputs, *selection, {"y": weights})["z"],
        jr.jax_vjp(theirs, inputs, *selection, {"y": weights})["z"],
        atol=1e-12,
    )


@pytest.mark.parametrize("recipes", [jr, tr], ids=["jax", "torch"])
def test_vectors_of_real_arrays_are_real(recipes):
    """The imaginary part was lost."""
    framework = "jax" if recipes is jr else "torch"
    jvp, vjp = getattr(recipes, f"{framework}_jvp"), getattr(recipes, f"{framework}_vjp")
    at, vector = {"x": np.ones(2, np.float32)}, np.array([1j, 1.0])
    square = lambda inputs: {"y": inputs["x"] ** 2}  # noqa: E731
    for product, name in ((jvp, "x"), (vjp, "y")):
        with pytest.raises(InputError, match="must be real") as caught:
            product(square, at, {"x"}, {"y"}, {name: vector})
        assert caught.value.code == "vector_not_real"

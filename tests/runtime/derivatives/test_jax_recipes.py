"""The recipes against plain JAX, on a function with every kind of leaf."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel, field_serializer

from chainrule._lru_cache import LRUCache
from chainrule.errors import InputError, PathError
from chainrule.runtime import Array, Differentiable, Float32
from chainrule.runtime.jax_recipes import (
    _programs,
    jax_abstract_eval,
    jax_apply,
    jax_hessian_vector_product,
    jax_jacobian,
    jax_jvp,
    jax_value_and_vjp,
    jax_vjp,
)

INPUTS = {"x", "a.b.[0]"}
OUTPUTS = {"y", "l.[0]"}


def make_apply():
    traces = []

    @eqx.filter_jit
    def apply(d):
        traces.append(1)
        wave = jnp.sin if d["mode"] == "sin" else jnp.cos
        return {
            "y": wave(d["x"]) * d["a"]["b"][0],
            "k": 2 * d["i"],
            "flag": d["x"].sum() > 0,
            "label": d["mode"],
            "nothing": None,
            "l": [jnp.sum(d["x"] ** 2) * d["c"] * d["a"]["b"][0]],
        }

    return apply, traces


@pytest.fixture
def inputs():
    return {
        "x": np.arange(3, dtype=np.float32),
        "a": {"b": [np.float32(2.0)]},
        "i": np.arange(2),
        "mode": "sin",
        "c": 1.5,
        "absent": None,
    }


def plain(x, b):
    """The same function on bare arrays."""
    return {"y": jnp.sin(x) * b, "l.[0]": jnp.sum(x**2) * 1.5 * b}


@pytest.fixture
def point(inputs):
    return jnp.asarray(inputs["x"]), jnp.asarray(inputs["a"]["b"][0])


@pytest.fixture
def cotangent():
    return {"y": np.array([1.0, -1.0, 2.0]), "l.[0]": 0.5}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert found[path].shape == np.shape(value)
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-6)


def test_apply_returns_what_the_function_returns(inputs, point):
    apply, _ = make_apply()
    outputs = jax_apply(apply, inputs)
    np.testing.assert_allclose(outputs["y"], plain(*point)["y"])
    assert outputs["label"] == "sin"
    assert outputs["nothing"] is None


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse", "elimination", "measure"])
def test_jacobian(inputs, point, mode):
    apply, _ = make_apply()
    found = jax_jacobian(apply, inputs, INPUTS, OUTPUTS, mode=mode)
    expected = jax.jacrev(plain, argnums=(0, 1))(*point)
    for out, (by_x, by_b) in expected.items():
        assert_close(found[out], {"x": by_x, "a.b.[0]": by_b})


@pytest.mark.parametrize("batched", [False, True])
def test_jvp(inputs, point, batched):
    apply, _ = make_apply()
    v = {"x": np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]), "a.b.[0]": np.array([1.0, -1.0])}
    expected = [
        jax.jvp(plain, point, (jnp.float32(v["x"][i]), jnp.float32(v["a.b.[0]"][i])))[1]
        for i in range(2)
    ]
    if batched:
        found = jax_jvp(apply, inputs, INPUTS, OUTPUTS, v, batched=True)
        assert_close(found, {p: np.stack([e[p] for e in expected]) for p in OUTPUTS})
    else:
        first = {path: value[0] for path, value in v.items()}
        assert_close(jax_jvp(apply, inputs, INPUTS, OUTPUTS, first), expected[0])


@pytest.mark.parametrize("batched", [False, True])
def test_vjp(inputs, point, cotangent, batched):
    apply, _ = make_apply()
    _, pull = jax.vjp(plain, *point)
    by_x, by_b = pull({p: jnp.float32(u) for p, u in cotangent.items()})
    if batched:
        scales = np.array([1.0, 3.0])
        batch = {p: np.multiply.outer(scales, u) for p, u in cotangent.items()}
        found = jax_vjp(apply, inputs, INPUTS, OUTPUTS, batch, batched=True)
        expected = {"x": np.multiply.outer(scales, by_x), "a.b.[0]": scales * by_b}
        assert_close(found, expected)
    else:
        found = jax_vjp(apply, inputs, INPUTS, OUTPUTS, cotangent)
        assert_close(found, {"x": by_x, "a.b.[0]": by_b})


def test_value_and_vjp_is_one_pass(inputs, cotangent):
    apply, traces = make_apply()
    outputs, gradient = jax_value_and_vjp(apply, inputs, INPUTS, OUTPUTS, cotangent)
    assert len(traces) == 1
    assert_close(gradient, jax_vjp(apply, inputs, INPUTS, OUTPUTS, cotangent))
    np.testing.assert_array_equal(outputs["k"], [0, 2])
    assert outputs["label"] == "sin"
    assert outputs["nothing"] is None


def test_hessian_vector_product(inputs, point, cotangent):
    apply, _ = make_apply()

    def weighed(x, b):
        outputs = plain(x, b)
        return sum(jnp.sum(jnp.float32(u) * outputs[p]) for p, u in cotangent.items())

    v = (jnp.array([1.0, 0.5, -1.0]), jnp.float32(2.0))
    _, (by_x, by_b) = jax.jvp(jax.grad(weighed, argnums=(0, 1)), point, v)
    tangent = {"x": v[0], "a.b.[0]": v[1]}
    found = jax_hessian_vector_product(apply, inputs, INPUTS, OUTPUTS, cotangent, tangent)
    assert_close(found, {"x": by_x, "a.b.[0]": by_b})


def test_integers_booleans_and_python_numbers(inputs):
    apply, _ = make_apply()
    ins, outs = {"x", "i", "c"}, {"y", "k", "flag", "l.[0]"}
    jacobian = jax_jacobian(apply, inputs, ins, outs)
    assert jacobian["k"]["i"].shape == (2, 2)
    assert not np.any(jacobian["k"]["i"])
    assert jacobian["flag"]["x"].shape == (3,)
    np.testing.assert_allclose(jacobian["l.[0]"]["c"], 10.0)
    pushed = jax_jvp(apply, inputs, ins, outs, {"x": np.ones(3), "i": np.zeros(2), "c": 1.0})
    assert pushed["k"].dtype == jnp.int32
    assert pushed["flag"].dtype == bool
    pulled = jax_vjp(
        apply, inputs, ins, outs, {"y": np.ones(3), "k": np.ones(2), "flag": 1, "l.[0]": 0.0}
    )
    assert pulled["i"].shape == (2,)
    assert not np.any(pulled["i"])


def test_nothing_that_varies(inputs):
    apply, _ = make_apply()
    assert jax_jacobian(apply, inputs, {"i"}, {"k"})["k"]["i"].shape == (2, 2)
    assert not np.any(jax_vjp(apply, inputs, {"i"}, {"k"}, {"k": np.ones(2)})["i"])


@pytest.mark.parametrize("path", ["absent", "mode"])
def test_what_is_no_array_cannot_be_differentiated(inputs, path):
    apply, _ = make_apply()
    with pytest.raises(PathError) as caught:
        jax_jacobian(apply, inputs, {path}, {"y"})
    assert caught.value.code == "path_not_differentiable"
    with pytest.raises(PathError):
        jax_jacobian(apply, inputs, {"x"}, {"label"})


def test_compiled_once_whatever_the_order_of_paths(inputs, cotangent):
    apply, traces = make_apply()
    for ins in (["x", "a.b.[0]"], ["a.b.[0]", "x"], {"x", "a.b.[0]"}):
        for outs in (["y", "l.[0]"], ["l.[0]", "y"]):
            jax_vjp(apply, inputs, ins, outs, dict(reversed(cotangent.items())))
            jax_vjp(apply, inputs, ins, outs, cotangent)
    assert len(traces) == 1
    jax_vjp(apply, inputs | {"x": inputs["x"] + 1}, ["x", "a.b.[0]"], OUTPUTS, cotangent)
    assert len(traces) == 1
    jax_vjp(apply, inputs | {"mode": "cos"}, ["x", "a.b.[0]"], OUTPUTS, cotangent)
    assert len(traces) == 2


def test_equal_statics_of_different_types_are_told_apart():
    # Not jitted: `filter_jit` itself takes True for 1.
    def apply(d):
        return {"y": d["x"] * (2.0 if d["flag"] is True else 1.0)}

    x = np.ones(2, np.float32)
    for flag, factor in ((True, 2.0), (1, 1.0), (1.0, 1.0), (True, 2.0)):
        found = jax_jacobian(apply, {"x": x, "flag": flag}, {"x"}, {"y"})
        np.testing.assert_array_equal(found["y"]["x"], factor * np.eye(2))


def test_statics_need_not_be_hashable():
    def apply(d):
        return {"y": d["x"] * len(d["names"]) * len(d["tags"])}

    inputs = {"x": np.float32(1), "names": np.array(["a", "b", "c"]), "tags": {"t", "u"}}
    assert jax_vjp(apply, inputs, {"x"}, {"y"}, {"y": 1.0})["x"] == 6.0


def test_methods_compile_once_and_old_programs_are_forgotten(monkeypatch):
    traces = []

    class Author:
        def apply(self, d):
            traces.append(1)
            return {"y": 2.0 * d["x"]}

    author = Author()
    for _ in range(3):
        jax_vjp(author.apply, {"x": np.float32(1)}, {"x"}, {"y"}, {"y": 1.0})
    assert len(traces) == 1
    monkeypatch.setattr(_programs, "_programs", LRUCache(2))
    for k in range(4):
        found = jax_vjp(author.apply, {"x": np.float32(1), "k": k}, {"x"}, {"y"}, {"y": 1.0})
        assert found["x"] == 2.0
    assert len(_programs._programs) == 2


class Serialized(BaseModel):
    x: Differentiable[Array[(None,), Float32]]
    power: int = 2

    @field_serializer("power")
    def _as_text(self, power: int) -> str:
        return str(power)


def test_calls_that_are_alike_and_then_are_not():
    """A call like the one before takes a short way; one that differs in anything must not."""

    @eqx.filter_jit
    def apply(d):
        return {"y": d["a"] * d["b"], "z": d["a"] + 3 * d["b"]}

    class Model(BaseModel, arbitrary_types_allowed=True, extra="ignore"):
        a: object
        b: object

    a, b = np.float32([1, 2]), np.float32([5, 7])
    for _ in range(2):
        for inputs in (
            {"a": a, "b": b}, {"b": b, "a": a}, Model(a=a, b=b), Model(a=a, b=np.float64(b)),
            {"a": a, "b": 5.0}, Model.model_construct(b=b, a=a),
        ):  # fmt: skip
            scale = np.broadcast_to(inputs["b"] if isinstance(inputs, dict) else inputs.b, (2,))
            for paths in ({"y"}, ["y"], {"z"}, {"z", "y"}):
                found = jax_jacobian(apply, inputs, {"a"}, paths)
                assert set(found) == set(paths)
                for path, blocks in found.items():
                    wanted = np.diag(scale) if path == "y" else np.eye(2)
                    np.testing.assert_array_equal(blocks["a"], wanted)
    lacking = Model.model_construct(a=a)
    with pytest.raises(KeyError):
        jax_jacobian(apply, lacking, {"a"}, {"y"})


def test_models_with_serializers_are_dumped():
    apply = eqx.filter_jit(lambda d: {"y": d["x"] ** int(d["power"] + "0")})
    found = jax_jacobian(apply, Serialized(x=np.ones(1, np.float32)), {"x"}, {"y"})
    np.testing.assert_allclose(found["y"]["x"], [[20.0]])


def test_half_precision_flows():
    apply = eqx.filter_jit(lambda d: {"y": 2 * d["x"]})
    x = np.ones(2, jnp.bfloat16)
    found = jax_jvp(apply, {"x": x}, {"x"}, {"y"}, {"x": x})
    assert found["y"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found["y"].astype(np.float32), [2.0, 2.0])


class Model(BaseModel):
    x: Differentiable[Array[(None,), Float32]]
    scale: float = 2.0


def test_inputs_may_be_a_model():
    apply = eqx.filter_jit(lambda d: {"y": d["x"] * d["scale"]})
    model = Model(x=np.ones(2, np.float32))
    found = jax_jacobian(apply, model, {"x"}, {"y"})
    np.testing.assert_array_equal(found["y"]["x"], 2 * np.eye(2))


@pytest.mark.parametrize(
    ("tangent", "code"),
    [({"x": np.ones(3)}, "vector_keys_mismatch"),
     ({"x": np.ones(4), "a.b.[0]": 1.0}, "vector_shape_mismatch")],
)  # fmt: skip
def test_vectors_that_do_not_fit(inputs, tangent, code):
    apply, _ = make_apply()
    with pytest.raises(InputError) as caught:
        jax_jvp(apply, inputs, INPUTS, OUTPUTS, tangent)
    assert caught.value.code == code


def test_batched_vectors_need_their_own_batch_axis(inputs):
    apply, _ = make_apply()
    with pytest.raises(InputError) as caught:
        jax_jvp(apply, inputs, {"x"}, {"y"}, {"x": np.ones(3)}, batched=True)
    assert caught.value.code == "vector_shape_mismatch"


def test_complex_functions():
    apply = jax.jit(lambda d: {"y": d["z"] ** 2, "r": jnp.abs(d["x"] * (1 + 2j)) ** 2})
    inputs = {"z": np.complex64([1 + 2j, 3j]), "x": np.float32([1.0, 2.0])}
    found = jax_jacobian(apply, inputs, {"z"}, {"y"})
    np.testing.assert_allclose(found["y"]["z"], np.diag(2 * inputs["z"]), rtol=1e-6)
    found = jax_jacobian(apply, inputs, {"x"}, {"r"})
    np.testing.assert_allclose(found["r"]["x"], np.diag(10 * inputs["x"]), rtol=1e-6)


def test_abstract_evaluation_foretells_the_result(inputs):
    apply, _ = make_apply()
    abstract = inputs | {
        "x": {"shape": (3,), "dtype": "float32"},
        "a": {"b": [{"shape": [], "dtype": "float32"}]},
        "i": {"shape": [2], "dtype": "int32"},
    }
    found = jax_abstract_eval(apply, abstract)
    outputs = jax_apply(apply, inputs)
    assert found["y"] == {"shape": outputs["y"].shape, "dtype": outputs["y"].dtype.name}
    assert found["l"] == [{"shape": (), "dtype": "float32"}]
    assert found["label"] == "sin"
    assert found["nothing"] is None


def test_measuring_happens_once_and_survives_a_mode_that_fails(caplog):
    @jax.jit
    def apply(d):
        return {"y": jax.lax.while_loop(lambda x: x < 10.0, lambda x: 2.0 * x, d["x"])}

    with caplog.at_level(logging.INFO):
        for start, factor in ((1.0, 16.0), (3.0, 4.0)):
            found = jax_jacobian(apply, {"x": np.float32(start)}, {"x"}, {"y"}, mode="measure")
            assert found["y"]["x"] == factor
    assert (
        "jacrev is left out: JAX cannot pull cotangents back through the `while` loop"
        in caplog.text
    )
    assert caplog.text.count("trace and compile") == 1


def test_what_cannot_be_measured_is_estimated():
    apply = jax.jit(lambda d: {"y": d["z"] ** 2})
    z = np.complex64([1 + 2j, 3j])
    for _ in range(2):
        found = jax_jacobian(apply, {"z": z}, {"z"}, {"y"}, mode="measure")
        np.testing.assert_allclose(found["y"]["z"], np.diag(2 * z), rtol=1e-6)


def test_an_unknown_mode_is_refused():
    apply = jax.jit(lambda d: {"y": 2.0 * d["x"]})
    with pytest.raises(
        InputError, match="There is no mode 'backward'; it is one of 'auto'"
    ) as caught:
        jax_jacobian(apply, {"x": np.float32(1)}, {"x"}, {"y"}, mode="backward")
    assert caught.value.code == "unknown_method"


def test_a_case_that_is_not_chosen_is_no_part_of_the_jacobian():
    """At 0 the square root has an infinite derivative, which `where` cuts off."""

    @jax.jit
    def apply(d):
        squared = jnp.sum(d["x"] ** 2, axis=-1)
        return {"norm": jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 0.0)), 0.0)}

    inputs = {"x": np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)}
    expected = np.zeros((2, 2, 2))
    expected[1, 1] = [0.6, 0.8]
    for mode in ("auto", "forward", "reverse", "elimination"):
        found = jax_jacobian(apply, inputs, {"x"}, {"norm"}, mode=mode)
        np.testing.assert_allclose(found["norm"]["x"], expected, rtol=1e-6)

"""Endpoints that the author left out follow from those that are there."""

import itertools
from types import ModuleType
from typing import Annotated

import jax
import numpy as np
import pytest
from pydantic import BaseModel, Field

from chainrule import apply_component
from chainrule._endpoints import JACOBIAN, JVP, VJP
from chainrule.errors import ComponentError, InputError
from chainrule.runtime import (
    Array,
    Differentiable,
    Float64,
    component,
    load_component,
)

Vector = Differentiable[Array[(None,), Float64]]


class InputSchema(BaseModel):
    a: Vector
    b: Vector


class OutputSchema(BaseModel):
    u: Vector
    v: Differentiable[Float64]


A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
POINT = {"a": np.array([1.0, -2.0, 0.5]), "b": np.array([2.0, 3.0])}
CALLS = []


def apply(inputs):
    CALLS.append("apply")
    return {"u": A @ inputs.a * inputs.b, "v": np.sum(inputs.a**2)}


def blocks(inputs):
    return {
        ("u", "a"): inputs.b[:, None] * A,
        ("u", "b"): np.diag(A @ inputs.a),
        ("v", "a"): 2 * inputs.a,
        ("v", "b"): np.zeros(2),
    }


def jacobian(inputs, jac_inputs, jac_outputs):
    CALLS.append("jacobian")
    all_blocks = blocks(inputs)
    return {o: {i: all_blocks[o, i] for i in jac_inputs} for o in jac_outputs}


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    CALLS.append("jvp")
    all_blocks = blocks(inputs)
    return {o: sum(all_blocks[o, i] @ tangent_vector[i] for i in jvp_inputs) for o in jvp_outputs}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    CALLS.append("vjp")
    all_blocks = blocks(inputs)
    return {
        i: sum(np.asarray(cotangent_vector[o]) @ all_blocks[o, i] if o == "u"
               else cotangent_vector[o] * all_blocks[o, i] for o in vjp_outputs)
        for i in vjp_inputs
    }  # fmt: skip


NATIVE = {
    JACOBIAN.endpoint: jacobian,
    JVP.endpoint: jacobian_vector_product,
    VJP.endpoint: vector_jacobian_product,
}


def make(names):
    functions = {"apply": apply, **{name: NATIVE[name] for name in names}}
    module = ModuleType("probe")
    vars(module).update(InputSchema=InputSchema, OutputSchema=OutputSchema, **functions)
    return load_component(module)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize(
    ("answer", "fragment"),
    [
        (None, "None. Does its function end with `return`"),
        (2.0, "a float, expected a dict"),
        ({"z": 1.0}, "other keys than it was asked for: missing"),
    ],
    ids=str,
)
def test_a_wrong_answer_names_the_endpoint_that_the_author_wrote(name, answer, fragment):
    module = ModuleType("probe")
    vars(module).update(InputSchema=InputSchema, OutputSchema=OutputSchema, apply=apply)
    setattr(module, name, lambda **request: answer)
    component, ones = load_component(module), {"u": np.ones(2), "v": 1.0}
    for ask in (
        lambda: component.jacobian(POINT),
        lambda: component.jacobian_vector_product(POINT, ["a"], ["u"], {"a": np.ones(3)}),
        lambda: component.vector_jacobian_product(POINT, ["a", "b"], ["u", "v"], ones),
        lambda: component.value_and_vjp(POINT, ["a", "b"], ["u", "v"], ones),
    ):
        with pytest.raises(ComponentError, match=f"{name} returned {fragment}") as caught:
            ask()
        assert caught.value.code == "bad_output"


def test_a_gradient_of_a_wrong_shape_names_the_endpoint_that_the_author_wrote():
    module = ModuleType("probe")
    vars(module).update(InputSchema=InputSchema, OutputSchema=OutputSchema, apply=apply)
    module.vector_jacobian_product = lambda **request: {"a": np.ones(2)}
    with pytest.raises(
        ComponentError, match=r"vector_jacobian_product .* wrong array at \['a'\]"
    ) as caught:
        load_component(module).jacobian(POINT, ["a"], ["v"])
    assert caught.value.code == "bad_output"


SUBSETS = [s for k in (1, 2, 3) for s in itertools.combinations(NATIVE, k)]


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
def test_every_endpoint_from_every_subset(names):
    component = make(names)
    assert set(component.available_endpoints) == {"apply", "health", "value_and_vjp", *NATIVE}
    for kind in (JACOBIAN, JVP, VJP):
        expected = "native" if kind.endpoint in names else "derived"
        assert component.capabilities[kind.endpoint].status == expected
    model = InputSchema(**POINT)
    all_blocks = blocks(model)
    found = component.jacobian(POINT, ["a", "b"], ["u", "v"])
    for (o, i), block in all_blocks.items():
        np.testing.assert_allclose(found[o][i], block)
    tangent = {"a": np.array([1.0, 0.5, 2.0])}
    pushed = component.jacobian_vector_product(POINT, ["a"], ["u", "v"], tangent)
    np.testing.assert_allclose(pushed["u"], all_blocks["u", "a"] @ tangent["a"])
    np.testing.assert_allclose(pushed["v"], all_blocks["v", "a"] @ tangent["a"])
    cotangent = {"u": np.array([1.0, -1.0])}
    pulled = component.vector_jacobian_product(POINT, ["a", "b"], ["u"], cotangent)
    np.testing.assert_allclose(pulled["a"], cotangent["u"] @ all_blocks["u", "a"])
    np.testing.assert_allclose(pulled["b"], cotangent["u"] @ all_blocks["u", "b"])


def test_the_cheaper_way_is_taken():
    component = make([JVP.endpoint, VJP.endpoint])
    assert component.capabilities["jacobian"].via == "jvp or vjp"
    CALLS.clear()
    component.jacobian(POINT, ["a"], ["v"])  # 3 inputs, 1 output
    assert CALLS.count("vjp") == 1
    assert CALLS.count("jvp") == 0
    CALLS.clear()
    component.jacobian(POINT, ["b"], ["u", "v"])  # 2 inputs, 3 outputs
    assert CALLS.count("jvp") == 2
    assert CALLS.count("vjp") == 0


def test_what_derived_endpoints_come_from():
    only = make([VJP.endpoint])
    assert str(only.capabilities["jacobian"]) == "derived (vector_jacobian_product)"
    assert str(only.capabilities["jacobian_vector_product"]) == "derived (jacobian)"
    assert only.openapi_schema["x-capabilities"]["jacobian"]["status"] == "derived"


def test_nothing_is_derived_from_nothing():
    component = make([])
    assert component.available_endpoints == ["apply", "health"]


def test_a_size_that_is_named_inside_a_list_is_known():
    class Wing(BaseModel):
        chord: Differentiable[Array[("n",), Float64]]

    @component(derivatives="finite")
    def lift(wings: list[Wing], gain: Float64 = 1.0) -> Differentiable[Array[("n", 2), Float64]]:
        return gain * np.stack([sum(w.chord for w in wings), wings[0].chord ** 2], 1)

    chord = {"chord": {"shape": [3], "dtype": "float64"}}
    assert lift.abstract_eval({"wings": [chord, chord]})["result"]["shape"] == [3, 2]
    with pytest.raises(InputError, match=r"that of wings\.\[\]\.chord in the inputs") as caught:
        lift.abstract_eval({"wings": []})
    assert caught.value.code == "size_unknown"
    other = {"chord": {"shape": [4], "dtype": "float64"}}
    with pytest.raises(
        InputError, match=r"size 3 in wings\.\[0\]\.chord but size 4 in wings\.\[1\]"
    ):
        lift.abstract_eval({"wings": [chord, other]})

    def total(a, b):
        return apply_component(lift, {"wings": [{"chord": a}, {"chord": b}]})["result"].sum()

    a = np.array([1.0, 2.0, 3.0], np.float32)
    with jax.enable_x64(True):
        assert jax.eval_shape(total, a, a).shape == ()
        np.testing.assert_allclose(jax.jit(jax.grad(total))(a, a), 1 + 2 * a, rtol=1e-5)


def test_bounds_on_arrays_do_not_hinder_abstract_evaluation():
    @component
    def scale(
        x: Annotated[Array[("n",), Float64], Field(description="any")],
        factor: Annotated[Float64, Field(gt=0, description="positive")] = 2.0,
        many: list[Annotated[Float64, Field(ge=1)]] = [1.0],  # noqa: B006
    ) -> Array[("n",), Float64]:
        return factor * x

    shape = {"shape": [3], "dtype": "float64"}
    foretold = scale.abstract_eval({"x": shape, "many": [{"shape": [], "dtype": "float64"}]})
    assert foretold["result"] == shape
    with pytest.raises(InputError):
        scale.apply({"x": [1.0], "factor": -1.0})

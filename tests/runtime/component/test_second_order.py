"""Second derivatives, batches of vectors, and value with gradient: from every kind of component."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule.errors import CapabilityError, ComponentError, DefinitionError
from chainrule.runtime import Array, Differentiable, Float64, component, load_component
from chainrule.runtime.testing import check_gradients

Vector = Differentiable[Array[("n",), Float64]]
A, B = np.array([0.3, 1.2, -0.7]), np.array([1.1, 0.4, 0.9])
U, V = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.25, -3.0])
BATCH = np.arange(12.0).reshape(4, 3) - 5


def program(a, b):
    return jnp.sin(a) * b**2 + jnp.sum(a * b)


@component(framework="jax")
def wave(a: Vector, b: Vector, label: str = "") -> Vector:
    return program(a, b)


@component(derivatives="finite")
def cubes(a: Vector) -> Vector:
    return a**3 * np.sum(a)


def test_jax_gives_second_derivatives():
    assert str(wave.capabilities["hessian_vector_product"]) == "derived (jax)"
    found = wave.hessian_vector_product(
        {"a": A, "b": B}, ["a", "b"], ["result"], {"result": U}, {"a": V, "b": 2 * V}
    )
    with jax.enable_x64():
        hessian = jax.hessian(lambda point: jnp.vdot(U, program(*point)))((A, B))
        expected = [row[0] @ V + row[1] @ (2 * V) for row in hessian]
    np.testing.assert_allclose(found["a"], expected[0], rtol=1e-4)
    np.testing.assert_allclose(found["b"], expected[1], rtol=1e-4)


def test_jax_answers_batches_and_value_with_gradient():
    inputs = {"a": A, "b": B, "label": "x"}
    outputs, pull = jax.vjp(program, jnp.asarray(A), jnp.asarray(B))
    found = wave.vector_jacobian_product(
        inputs, ["a", "b"], ["result"], {"result": BATCH}, batched=True
    )
    rows = [pull(jnp.asarray(row, outputs.dtype)) for row in BATCH]
    np.testing.assert_allclose(found["a"], [row[0] for row in rows], rtol=1e-5)
    np.testing.assert_allclose(found["b"], [row[1] for row in rows], rtol=1e-5)
    both = wave.value_and_vjp(inputs, ["b"], ["result"], {"result": BATCH[0]})
    assert str(wave.capabilities["value_and_vjp"]) == "derived (jax)"
    np.testing.assert_allclose(both["outputs"]["result"], outputs, rtol=1e-5)
    np.testing.assert_allclose(both["gradient"]["b"], rows[0][1], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_torch_gives_the_same():
    torch = pytest.importorskip("torch")

    evaluations = []

    @component(framework="torch")
    def cubed(a: Vector) -> Vector:
        evaluations.append(1)
        return torch.as_tensor(a) ** 3

    inputs = {"a": A}
    found = cubed.hessian_vector_product(inputs, ["a"], ["result"], {"result": U}, {"a": V})
    np.testing.assert_allclose(found["a"], 6 * A * U * V)
    pushed = cubed.jacobian_vector_product(inputs, ["a"], ["result"], {"a": BATCH}, batched=True)
    np.testing.assert_allclose(pushed["result"], 3 * A**2 * BATCH)
    evaluations.clear()
    both = cubed.value_and_vjp(inputs, ["a"], ["result"], {"result": U})
    assert len(evaluations) == 1
    np.testing.assert_allclose(both["outputs"]["result"], A**3)
    np.testing.assert_allclose(both["gradient"]["a"], 3 * A**2 * U)


def test_finite_differences_when_asked_for():
    found = cubes.hessian_vector_product(
        {"a": A}, ["a"], ["result"], {"result": U}, {"a": V}
    )  # of s Σ uᵢ aᵢ³ with s = Σ aᵢ
    expected = 3 * U * A**2 * V.sum() + np.sum(3 * U * A**2 * V) + 6 * A.sum() * U * A * V
    np.testing.assert_allclose(found["a"], expected, rtol=1e-6)
    assert str(cubes.capabilities["hessian_vector_product"]) == "derived (finite differences)"


class InputSchema(BaseModel):
    x: Vector


class OutputSchema(BaseModel):
    y: Vector


def module(**endpoints):
    """y = x³ as a module with these endpoints."""
    made = ModuleType("cubes")
    made.InputSchema, made.OutputSchema = InputSchema, OutputSchema
    made.apply = lambda inputs: OutputSchema(y=inputs.x**3)
    vars(made).update(endpoints)
    return made


def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 3 * inputs.x**2 * cotangent_vector["y"]}


HVP_ARGUMENTS = ({"x": A}, ["x"], ["y"], {"y": U}, {"x": V})


def test_second_derivatives_are_differenced_only_on_request():
    plain = load_component(module(vector_jacobian_product=vjp))
    assert plain.capabilities["hessian_vector_product"].status == "absent"
    with pytest.raises(CapabilityError):
        plain.hessian_vector_product(*HVP_ARGUMENTS)
    asked = plain.configured(derive_hvp=True)
    found = asked.hessian_vector_product(*HVP_ARGUMENTS)
    np.testing.assert_allclose(found["x"], 6 * A * U * V, rtol=1e-7)
    via = "differences of vector_jacobian_product"
    assert asked.capabilities["hessian_vector_product"].via == via


def test_a_batch_is_looped_over_functions_that_take_one_vector():
    calls = []

    def counted(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        calls.append(cotangent_vector["y"].shape)
        return vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector)

    made = load_component(module(vector_jacobian_product=counted))
    found = made.vector_jacobian_product({"x": A}, ["x"], ["y"], {"y": BATCH}, batched=True)
    np.testing.assert_allclose(found["x"], 3 * A**2 * BATCH)
    assert calls == [(3,)] * 4


def test_a_function_with_an_argument_batched_gets_the_batch():
    calls = []

    def counted(inputs, vjp_inputs, vjp_outputs, cotangent_vector, batched=False):
        calls.append(batched)
        return vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector)

    made = load_component(module(vector_jacobian_product=counted))
    found = made.vector_jacobian_product({"x": A}, ["x"], ["y"], {"y": BATCH}, batched=True)
    np.testing.assert_allclose(found["x"], 3 * A**2 * BATCH)
    made.vector_jacobian_product({"x": A}, ["x"], ["y"], {"y": U})
    assert calls == [True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        {"vector_jacobian_product": lambda **_: {"z": A}},
        {"vector_jacobian_product": lambda **_: A},
        {"vector_jacobian_product": lambda *, batched=False, **_: {"x": BATCH[:2]}},
    ],
)
def test_wrong_answers_to_a_batch(wrong):
    made = load_component(module(**wrong))
    with pytest.raises(ComponentError) as caught:
        made.vector_jacobian_product({"x": A}, ["x"], ["y"], {"y": BATCH}, batched=True)
    assert caught.value.code == "bad_output"


@pytest.mark.parametrize("answer", [{"x": A}, ({"y": A, "z": 1}, {"x": A}), ({"y": A}, {})])
def test_wrong_answers_with_a_value(answer):
    made = load_component(module(value_and_vjp=lambda **_: answer))
    with pytest.raises(ComponentError) as caught:
        made.value_and_vjp({"x": A}, ["x"], ["y"], {"y": U})
    assert caught.value.code == "bad_output"


@pytest.mark.parametrize("is_named", [False, True])
def test_value_and_gradient_of_an_author(is_named):
    def both(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        value = OutputSchema(y=inputs.x**3)
        gradient = {"x": 3 * inputs.x**2 * cotangent_vector["y"]}
        return {"outputs": value, "gradient": gradient} if is_named else (value, gradient)

    made = load_component(module(value_and_vjp=both))
    found = made.value_and_vjp({"x": A}, ["x"], ["y"], {"y": U})
    np.testing.assert_allclose(found["outputs"]["y"], A**3)
    np.testing.assert_allclose(found["gradient"]["x"], 3 * A**2 * U)


@pytest.mark.parametrize(("factor", "passes"), [(6, True), (5, False)])
def test_check_gradients_looks_at_the_curvature(factor, passes):
    def hvp(inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector):
        return {"x": factor * inputs.x * cotangent_vector["y"] * tangent_vector["x"]}

    made = load_component(module(vector_jacobian_product=vjp, hessian_vector_product=hvp))
    report = check_gradients(made, {"inputs": {"x": A}})
    (curvature,) = (check for check in report.checks if check.test == "curvature")
    assert curvature.endpoint == "hessian_vector_product"
    assert curvature.passed is passes
    assert report.passed is passes


def test_check_gradients_looks_at_value_and_vjp():
    def wrong(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return OutputSchema(y=inputs.x**3), {"x": 2 * inputs.x**2 * cotangent_vector["y"]}

    made = load_component(module(vector_jacobian_product=vjp, value_and_vjp=wrong))
    report = check_gradients(made, {"inputs": {"x": A}})
    assert {check.endpoint for check in report.checks if not check.passed} == {"value_and_vjp"}


def test_second_derivatives_need_something_differentiable():
    class Fixed(BaseModel):
        x: Array[("n",), Float64]

    made = module(hessian_vector_product=lambda **_: {})
    made.InputSchema = Fixed
    with pytest.raises(DefinitionError) as caught:
        load_component(made)
    assert caught.value.code == "nothing_differentiable"


def test_what_the_document_says():
    schemas = wave.openapi_schema["components"]["schemas"]
    for name, takes_batches in (("JVP", True), ("VJP", True), ("HVP", False), ("Jacobian", False)):
        request = schemas[f"{name}InputSchema"]
        assert ("batched" in request["properties"]) is takes_batches
        assert "batched" not in request["required"]
    assert schemas["HVPInputSchema"]["required"] == [
        "inputs", "hvp_inputs", "hvp_outputs", "cotangent_vector", "tangent_vector",
    ]  # fmt: skip
    assert schemas["ValueAndVJPOutputSchema"]["required"] == ["outputs", "gradient"]

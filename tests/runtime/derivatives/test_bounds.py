"""Finite differences stay inside the bounds of the input schema."""

from types import ModuleType
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Ge
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator, model_validator

from chainrule.errors import InputError
from chainrule.runtime import Array, Differentiable, Float32, Float64, component, load_component
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)
from chainrule.runtime.testing import check_gradients

ALGORITHMS = ["central", "forward", "richardson", "complex_step"]


class Fraction(BaseModel):
    x: Differentiable[Float64] = Field(ge=0, le=1)


class Open(BaseModel):
    x: Differentiable[Float64] = Field(gt=0, lt=1)


class Positive(BaseModel):
    """A bound on every element of an array, by a validator."""

    x: Differentiable[Array[(None,), Float64]]

    @field_validator("x")
    @classmethod
    def _check(cls, x):
        if (x < 0).any() or (x > 1).any():
            raise ValueError("fractions are between 0 and 1")
        return x


class Part(BaseModel):
    weight: Differentiable[Float64] = Field(ge=0)


class Nested(BaseModel):
    parts: list[Part]
    others: dict[str, Annotated[Differentiable[Float64], Ge(0)]]


def cubic(inputs):
    assert np.all((np.real(inputs.x) >= 0) & (np.real(inputs.x) <= 1))
    return {"y": inputs.x**3 + np.exp(inputs.x)}


def slope(x):
    return 3 * x**2 + np.exp(x)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("x", [0.0, 1.0, 1e-12, 1 - 1e-12, 0.5])
@pytest.mark.parametrize("eps", ["auto", 1e-5])
def test_a_step_is_taken_inwards(algorithm, x, eps):
    options = {"algorithm": algorithm, "eps": eps}
    # Near zero the step is as long as four digits take.
    rtol = 1e-4 if algorithm == "forward" or x == 1e-12 else 1e-8
    tolerance = {"rtol": rtol}
    at = Fraction(x=x)
    jacobian = finite_difference_jacobian(cubic, at, {"x"}, {"y"}, **options)
    np.testing.assert_allclose(jacobian["y"]["x"], slope(x), **tolerance)
    pulled = finite_difference_vjp(cubic, at, {"x"}, {"y"}, {"y": 2.0}, **options)
    np.testing.assert_allclose(pulled["x"], 2 * slope(x), **tolerance)
    for direction in (3.0, -3.0):
        pushed = finite_difference_jvp(cubic, at, {"x"}, {"y"}, {"x": direction}, **options)
        np.testing.assert_allclose(pushed["y"], direction * slope(x), **tolerance)


@pytest.mark.parametrize("x", [1e-9, 0.5, 1 - 1e-9])
def test_open_bounds_are_not_reached(x):
    def apply(inputs):
        assert 0 < inputs.x < 1
        return {"y": np.log(inputs.x)}

    found = finite_difference_jacobian(apply, Open(x=x), {"x"}, {"y"}, eps="auto")
    np.testing.assert_allclose(found["y"]["x"], 1 / x, rtol=1e-5)


def test_two_bounds_closer_than_the_step():
    class Narrow(BaseModel):
        x: Differentiable[Float64] = Field(ge=1.0, le=1.0 + 1e-7)

    def apply(inputs):
        assert 1 <= inputs.x <= 1 + 1e-7
        return {"y": inputs.x**2}

    for x in (1.0, 1 + 5e-8, 1 + 1e-7):
        found = finite_difference_jacobian(apply, Narrow(x=x), {"x"}, {"y"}, eps=1e-4)
        np.testing.assert_allclose(found["y"]["x"], 2 * x, rtol=1e-6)


def test_no_other_value_is_allowed():
    class Fixed(BaseModel):
        x: Differentiable[Float64] = Field(ge=1.0, le=1.0)

    with pytest.raises(InputError, match="no other value of 'x'") as caught:
        finite_difference_jacobian(lambda m: {"y": m.x}, Fixed(x=1.0), {"x"}, {"y"}, eps="auto")
    assert caught.value.code == "no_room"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(st.lists(st.sampled_from([0.0, 1.0, 0.25, 1e-9]), min_size=1, max_size=7))
def test_elements_at_bounds_beside_others(algorithm, values):
    x = np.array(values)
    at, options = Positive(x=x), {"algorithm": algorithm, "eps": "auto"}
    tolerance = {"rtol": 1e-4, "atol": 1e-8}
    found = finite_difference_jacobian(cubic, at, {"x"}, {"y"}, **options)
    np.testing.assert_allclose(found["y"]["x"], np.diag(slope(x)), **tolerance)
    tangent = np.where(np.arange(x.size) % 2, 1.0, -2.0)
    pushed = finite_difference_jvp(cubic, at, {"x"}, {"y"}, {"x": tangent}, **options)
    np.testing.assert_allclose(pushed["y"], slope(x) * tangent, **tolerance)


@pytest.mark.parametrize("sparsity", ["detect", np.eye(5, dtype=bool)], ids=["detected", "given"])
def test_columns_that_share_an_evaluation(sparsity):
    x = np.array([0.0, 1.0, 0.5, 0.0, 1.0])
    found = finite_difference_jacobian(
        cubic, Positive(x=x), {"x"}, {"y"}, eps="auto", sparsity=sparsity
    )
    block = found["y"]["x"]
    assert block.nnz == 5
    np.testing.assert_allclose(block.todense(), np.diag(slope(x)), rtol=1e-8)


def test_random_directions_at_bounds_are_unbiased():
    A = np.random.default_rng(3).normal(size=(2, 12))
    x = np.array([0.0, 1.0, 0.5, 0.5] * 3)
    arguments = (lambda m: {"y": A @ m.x}, Positive(x=x), {"x"}, {"y"})
    estimates = [
        finite_difference_jacobian(
            *arguments, algorithm="stochastic", num_samples=11, seed=seed, eps=1e-3
        )
        for seed in range(600)
    ]
    np.testing.assert_allclose(np.mean([e["y"]["x"] for e in estimates], 0), A, atol=0.4)


def test_bounds_inside_lists_and_dictionaries():
    def apply(inputs):
        weights = [part.weight for part in inputs.parts] + list(inputs.others.values())
        assert min(weights) >= 0
        return {"y": sum(np.exp(weight) for weight in weights)}

    at = Nested(parts=[Part(weight=0.0), Part(weight=1.0)], others={"a": 0.0})
    paths = {"parts.[0].weight", "parts.[1].weight", "others.{a}"}
    found = finite_difference_jacobian(apply, at, paths, {"y"}, eps="auto")["y"]
    np.testing.assert_allclose([found[path] for path in sorted(paths)], [1.0, 1.0, np.e], rtol=1e-8)


def test_float32_at_a_bound():
    class Single(BaseModel):
        x: Differentiable[Float32] = Field(ge=0, le=1)

    for x in (0.0, 1.0):
        found = finite_difference_jacobian(
            lambda m: {"y": np.exp(m.x)}, Single(x=x), {"x"}, {"y"}, eps="auto"
        )
        np.testing.assert_allclose(found["y"]["x"], np.exp(x), rtol=1e-3)


def test_inputs_that_are_refused_as_they_are_say_so_themselves():
    class Grows(BaseModel):
        x: Differentiable[Float64]

        @model_validator(mode="after")
        def _refuse(self):
            if self.x != 1.0:
                raise ValueError("only one")
            return self

    broken = Grows.model_construct(x=np.float64(2.0))
    with pytest.raises(ValueError, match="only one"):
        finite_difference_jacobian(lambda m: {"y": m.x}, broken, {"x"}, {"y"}, eps="auto")


@component(derivatives="finite")
def share(
    x: Annotated[Differentiable[Float64], Field(ge=0, le=1)],
) -> Differentiable[Float64]:
    return np.sqrt(1 + x) + x**3


@pytest.mark.parametrize("x", [0.0, 1.0, 0.5, 1e-10])
def test_components_and_their_check_stay_within_bounds(x):
    expected = 0.5 / np.sqrt(1 + x) + 3 * x**2
    found = share.jacobian({"x": x}, ["x"], ["result"])["result"]["x"]
    np.testing.assert_allclose(found, expected, rtol=1e-8 if x != 1e-10 else 1e-4)
    if x != 1e-10:
        paths = ({"x": x}, ["x"], ["result"])
        curvature = share.hessian_vector_product(*paths, {"result": 1.0}, {"x": 1.0})
        np.testing.assert_allclose(curvature["x"], -0.25 * (1 + x) ** -1.5 + 6 * x, rtol=1e-3)
    report = check_gradients(share, {"inputs": {"x": x}}, show_progress=False)
    assert report.passed, [check.summary for check in report.failures]
    assert all("skipped" not in check.summary for check in report.checks)


def test_a_wrong_derivative_at_a_bound_is_found():
    class InputSchema(BaseModel):
        x: Differentiable[Float64] = Field(ge=0, le=1)

    class OutputSchema(BaseModel):
        y: Differentiable[Float64]

    def apply(inputs):
        return {"y": np.exp(inputs.x)}

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return {"x": 1.5 * np.exp(inputs.x) * cotangent_vector["y"]}

    module = ModuleType("wrong")
    vars(module).update(InputSchema=InputSchema, OutputSchema=OutputSchema)
    vars(module).update(apply=apply, vector_jacobian_product=vector_jacobian_product)
    wrong = load_component(module)
    for x in (0.0, 1.0):
        report = check_gradients(wrong, {"inputs": {"x": x}}, show_progress=False)
        tests = {(check.endpoint, check.test) for check in report.failures}
        assert ("vector_jacobian_product", "pointwise") in tests
        assert ("vector_jacobian_product", "taylor") in tests

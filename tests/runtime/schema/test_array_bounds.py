"""Bounds on arrays: every element keeps them, the schema says them, and all that move inputs read them."""

from types import ModuleType
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Ge, Interval
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from chainrule import Component, ComponentError, InputError
from chainrule.errors import DefinitionError
from chainrule.runtime import (
    Array,
    Bounds,
    Complex128,
    Differentiable,
    Float32,
    Float64,
    Int32,
    component,
    load_component,
)

Vector = Differentiable[Array[("n",), Float64]]


class Part(BaseModel):
    chord: Array[("n",), Float64] = Field(gt=0)


@component(derivatives="finite")
def shape(
    x: Annotated[Vector, Field(ge=0, le=1, description="thickness")],
    parts: list[Part] = [],  # noqa: B006
    table: dict[str, Annotated[Array[(2, 2), Float64], Interval(ge=-1, lt=1)]] = {},  # noqa: B006
    either: Annotated[Array[(2,), Float64] | float | None, Ge(0)] = None,
    count: Annotated[Array[(None,), Int32], Field(le=5)] = [1],  # noqa: B006
) -> Vector:
    return x**2


def problem(inputs, what=shape):
    with pytest.raises(InputError) as caught:
        what.apply(inputs)
    (found,) = caught.value.details["problems"]
    return found


@pytest.mark.parametrize(
    ("inputs", "path", "kind", "index"),
    [
        ({"x": [0.5, -1, 2]}, ["x"], "greater_than_equal", [1]),
        ({"x": [0.5, 1.0, 1.0 + 1e-12]}, ["x"], "less_than_equal", [2]),
        ({"x": [np.nan]}, ["x"], "greater_than_equal", [0]),
        ({"x": [1.0], "parts": [{"chord": [1.0]}, {"chord": [0.0]}]}, ["parts", 1, "chord"],
         "greater_than", [0]),
        ({"x": [1.0], "table": {"a b": [[0, 0], [1, 0]]}}, ["table", "a b"], "less_than", [1, 0]),
        ({"x": [1.0], "count": [5, 6]}, ["count"], "less_than_equal", [1]),
    ],
)  # fmt: skip
def test_the_first_element_outside_is_named(inputs, path, kind, index):
    found = problem(inputs)
    assert list(found["loc"])[-len(path) :] == path
    assert (found["type"], found["ctx"]["index"]) == (kind, index)
    assert f"element {index}" in found["msg"]
    assert str(inputs["x"][0]) not in found["msg"]  # no data in messages


def test_values_at_the_bounds_and_empty_arrays_pass():
    assert shape.apply({"x": [0.0, 1.0]})["result"].tolist() == [0.0, 1.0]
    assert shape.apply({"x": []})["result"].shape == (0,)


@pytest.mark.parametrize("value", [None, 2.0, [0.0, 1.0]])
def test_members_of_a_union_all_keep_the_bounds(value):
    shape.apply({"x": [1.0], "either": value})
    if value is not None:
        with pytest.raises(InputError):
            shape.apply({"x": [1.0], "either": np.negative(value).tolist()})


def test_scalars_have_the_error_of_pydantic():
    @component
    def root(x: Annotated[Float64, Field(ge=0)]) -> Float64:
        return x**0.5

    found = problem({"x": -1.0}, root)
    assert found["msg"] == "Input should be greater than or equal to 0"
    assert found["ctx"] == {"ge": 0}


class ByHand(BaseModel):
    x: Array[(2,), Float64, "m", Bounds(ge=0)]
    y: Differentiable[Array[(2,), Float64, Bounds(ge=0)]] = Field(
        [1, 1], json_schema_extra={"le": 3}
    )


def test_bounds_in_the_declaration_hold_in_models_made_by_hand():
    assert ByHand(x=[0, 1]).x.tolist() == [0, 1]
    with pytest.raises(ValidationError, match=r"element \[1\] is smaller"):
        ByHand(x=[0, -1])

    @component
    def both(x: Annotated[Array[(2,), Float64, Bounds(ge=0)], Field(le=1)]) -> Float64:
        return x[0]

    assert both.apply({"x": [0.0, 1.0]})["result"] == 0
    assert problem({"x": [0, 2]}, both)["type"] == "less_than_equal"
    assert problem({"x": [-1, 0]}, both)["type"] == "greater_than_equal"
    with pytest.raises(DefinitionError, match="has no order"):
        Array[(2,), Complex128, Bounds(ge=0)]
    with pytest.raises(DefinitionError, match="once each"):
        Array[(2,), Float64, "m", "s"]
    assert repr(Array[(2,), Float64, Bounds(ge=0)]) == "Array[(2,), 'float64', Bounds(ge=0)]"


def test_defaults_and_outputs_are_held_to_them():
    @component
    def broken(
        x: Annotated[Array[(2,), Float64], Field(ge=0)] = [1, -1],  # noqa: B006
    ) -> Annotated[Array[(2,), Float64], Field(le=0)]:
        return x

    assert problem({}, broken)["ctx"]["index"] == [1]
    with pytest.raises(ComponentError, match=r"element \[0\]"):
        broken.apply({"x": [1.0, 0.0]})


def test_the_document_states_them_here_and_far_away():
    handle = Component.from_api(shape)
    properties = handle.openapi_schema["components"]["schemas"]["Apply_InputSchema"]["properties"]
    assert (properties["x"]["minimum"], properties["x"]["maximum"]) == (0, 1)
    assert properties["x"]["description"] == "thickness"
    assert properties["table"]["additionalProperties"]["exclusiveMaximum"] == 1
    bounds = Bounds(ge=0, le=1)
    assert shape.differentiable_inputs["x"].bounds == bounds
    assert handle.differentiable_inputs["x"].bounds == bounds  # by way of the document
    assert handle.differentiable_inputs["x"].dimension_names == ("n",)
    assert str(bounds) == "≥ 0, ≤ 1"
    assert (bounds.lower, bounds.upper, Bounds(gt=2).upper) == (0, 1, np.inf)


def test_differences_at_bounds_need_few_questions():
    """The schema is asked where elements may move; besides, it validates the inputs of every evaluation."""
    asked, runs = [], []
    noted = BeforeValidator(lambda value: asked.append(1) or value)

    @component(derivatives="finite")
    def square(x: Annotated[Vector, Field(ge=0, le=1), noted]) -> Vector:
        runs.append(1)
        return x**2

    x = np.zeros(300)
    x[::3] = 1.0
    found = square.jacobian({"x": x})["result"]["x"]
    np.testing.assert_allclose(np.diag(found), 2 * x, atol=1e-6)
    assert 300 < len(runs) < len(asked) < len(runs) + 20


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-2, 2), max_size=4), st.floats(-1, 1), st.floats(-1, 1))
def test_agrees_with_comparisons_of_single_numbers(values, low, high):
    bounds = Bounds(gt=low, le=high)
    wanted = [low < value <= high for value in values]
    assert bounds.allowed(np.array(values)).tolist() == wanted
    violation = bounds.first_violation(np.array(values))
    assert (violation is None) == all(wanted)
    if violation is not None:
        assert not wanted[violation[1][0]]
    assert Bounds.from_json_schema(bounds.json_schema()) == bounds
    assert Bounds.from_json_schema({"gt": low, "le": high}) == bounds


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Annotated[Array[(2,), Complex128], Field(ge=0)], "has no order"),
        (Annotated[Array[(2,), Float64], Ge("a")], "to be a number"),
        (Annotated[Array[(2,), Float64], Ge(float("nan"))], "to be a number"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(annotation, message):
    def f(x) -> Float64:
        return 0.0

    f.__annotations__["x"] = annotation
    with pytest.raises(DefinitionError, match=message):
        component(f)


def test_a_traced_value_is_not_known_yet():
    import jax

    from chainrule import apply_component

    @component(framework="jax")
    def double(
        x: Annotated[Differentiable[Array[("n",), Float32]], Field(ge=0)],
    ) -> Differentiable[Array[("n",), Float32]]:
        return 2 * x

    grad = jax.jit(jax.grad(lambda x: apply_component(double, {"x": x})["result"].sum()))
    assert grad(np.full(2, 3.0)).tolist() == [2, 2]


def test_an_authors_derivative_is_traced_without_values():
    import jax

    from chainrule import apply_component

    class InputSchema(BaseModel):
        x: Differentiable[Array[("n",), Float32]] = Field(ge=2)

    class OutputSchema(BaseModel):
        y: Differentiable[Array[("n",), Float32]]

    module = ModuleType("doubling")
    vars(module).update(
        InputSchema=InputSchema,
        OutputSchema=OutputSchema,
        apply=jax.jit(lambda inputs: {"y": 2 * inputs["x"]}),
        vector_jacobian_product=lambda inputs, vjp_inputs, vjp_outputs, cotangent_vector: {
            "x": 2 * cotangent_vector["y"]
        },
    )
    doubling = load_component(module)
    grad = jax.jit(jax.grad(lambda x: apply_component(doubling, {"x": x})["y"].sum()))
    assert grad(np.full(2, 3.0, "float32")).tolist() == [2, 2]


class Wing(BaseModel):
    chord: Array[("n",), Float64]


@component
def lengths(
    wings: list[Wing], more: Array[("m",), Float64] | None = None
) -> Array[("n",), Float64]:
    return wings[0].chord


def test_sizes_inside_lists_are_known_without_running():
    wings = [{"chord": {"shape": [4], "dtype": "float64"}}] * 2
    assert lengths.abstract_eval({"wings": wings}) == {"result": {"shape": [4], "dtype": "float64"}}


def test_an_empty_list_has_no_size():
    with pytest.raises(InputError, match=r"wings\.\[\]\.chord") as caught:
        lengths.abstract_eval({"wings": []})
    assert caught.value.code == "size_unknown"

"""What a component's caller is told about arrays."""

from functools import cached_property
from types import ModuleType

import numpy as np
import pytest
from pydantic import BaseModel, Field, create_model

from chainrule.errors import ComponentError, InputError
from chainrule.runtime import Array, Float32, Float64, Int8, load_component
from chainrule.runtime.experimental import LazySequence


class InputSchema(BaseModel):
    x: Array[("n",), Float64]
    either: Array[(3,), Float32] | Array[(3, 3), Float64] | None = None
    scale: Float32 = 1.0


class OutputSchema(BaseModel):
    y: Array[("n",), Float64]


def component(apply, inputs=InputSchema, outputs=OutputSchema):
    module = ModuleType("some_component")
    module.InputSchema, module.OutputSchema, module.apply = inputs, outputs, apply
    return load_component(module)


def test_dimensions_agree_across_inputs_and_outputs():
    assert component(lambda inputs: {"y": inputs.x}).apply({"x": [1, 2]})["y"].tolist() == [1, 2]
    with pytest.raises(ComponentError, match="'n' has size 2 in x but size 1 in y"):
        component(lambda inputs: {"y": inputs.x[:1]}).apply({"x": [1, 2]})


def test_authors_get_own_arrays_and_numpy_scalars():
    seen = []

    def apply(inputs):
        seen.append(inputs)
        return {"y": inputs.x}

    component(apply).apply({"x": np.zeros(2)})
    assert seen[0].x.flags.writeable
    assert type(seen[0].scale) is np.float32


@pytest.mark.parametrize("wanted", ["y", "total"])
def test_cached_properties_of_models_are_no_fields(wanted):
    """Python keeps them in the dictionary in which pydantic keeps the fields."""

    class Summed(InputSchema):
        @cached_property
        def total(self):
            return self.x.sum()

    class Outputs(OutputSchema):
        @cached_property
        def total(self):
            return self.y.sum()

    def apply(inputs):
        outputs = Outputs(y=inputs.x * inputs.total)
        getattr(outputs, wanted)
        return outputs

    inputs = Summed(x=[1, 2])
    getattr(inputs, {"y": "x"}.get(wanted, wanted))
    assert component(apply, Summed, Outputs).apply(inputs)["y"].tolist() == [3, 6]


def test_problems_of_a_union_stand_at_its_path():
    with pytest.raises(InputError) as caught:
        component(lambda inputs: {"y": inputs.x}).apply({"x": [1], "either": np.ones((3, 4))})
    problems = caught.value.details["problems"]
    assert [problem["loc"] for problem in problems] == [["inputs", "either"]] * 2
    assert [problem["type"] for problem in problems] == [
        "array_dimensionality_mismatch", "array_shape_mismatch",
    ]  # fmt: skip
    assert caught.value.path == "either"


def test_errors_never_carry_data():
    with pytest.raises(InputError) as caught:
        component(lambda inputs: {"y": inputs.x}).apply({"x": [[123456.789]]})
    assert "123456" not in f"{caught.value!r} {caught.value} {caught.value.details}"


class Defaults(BaseModel):
    scalar: Float32 = 1.0
    maybe: Float64 | None = 2
    array: Array[(2,), Float32] = [1, 2]
    several: list[Int8] = [1]
    made: Float64 = Field(default_factory=lambda: 3)


class Nested(BaseModel):
    part: Defaults


class Sizes(BaseModel):
    y: Array[(None,), Float64]


def seen_by_author(schema, inputs):
    seen = []

    def apply(inputs):
        seen.append(inputs)
        return {"y": [0.0]}

    component(apply, schema, Sizes).apply(inputs)
    return seen[0]


@pytest.mark.parametrize("nested", [False, True])
def test_defaults_are_validated_like_any_value(nested):
    values = seen_by_author(Nested, {"part": {}}).part if nested else seen_by_author(Defaults, {})
    assert type(values.scalar) is np.float32
    assert type(values.maybe) is np.float64
    assert values.array.dtype == np.float32
    assert type(values.several[0]) is np.int8
    assert type(values.made) is np.float64


def test_an_unfit_default_is_an_error():
    model = create_model("Model", field=(Array[(2,), Float64], [1.0, 2.0, 3.0]))
    with pytest.raises(InputError) as caught:
        seen_by_author(model, {})
    assert caught.value.details["problems"][0]["type"] == "array_shape_mismatch"


class Cloud(BaseModel):
    points: Array[("n", 3), Float64]
    masses: Array[("n",), Float64]


class Scene(BaseModel):
    clouds: list[Cloud]
    more: LazySequence[Cloud] = []


def cloud(n, m=None):
    return {"points": np.ones((n, 3)), "masses": np.ones(n if m is None else m)}


def test_dimensions_agree_in_all_models_of_one_call():
    assert len(seen_by_author(Scene, {"clouds": [cloud(2), cloud(2)]}).clouds) == 2
    with pytest.raises(
        InputError, match=r"size 2 in clouds\.\[0\]\.points but size 3 in clouds\.\[1\]"
    ):
        seen_by_author(Scene, {"clouds": [cloud(2), cloud(3)]})


def test_dimensions_of_items_that_are_read_later_agree():
    def apply(inputs):
        return {"y": [float(len(item.masses)) for item in inputs.more]}

    sizes = component(apply, Scene, Sizes)
    assert sizes.apply({"clouds": [], "more": [cloud(2), cloud(2)]})["y"].tolist() == [2.0, 2.0]
    for other in (cloud(3), cloud(2, 3)):
        with pytest.raises(ComponentError, match="'n' has size 2"):
            sizes.apply({"clouds": [], "more": [cloud(2), other]})


def test_a_model_that_is_made_by_hand_is_no_call():
    assert Cloud(**cloud(2, 3)).masses.shape == (3,)
    assert Defaults().array == [1, 2]

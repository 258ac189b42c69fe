"""What a component's caller is told about arrays."""

from types import ModuleType

import numpy as np
import pytest
from pydantic import BaseModel

from chainrule._errors import ComponentError, InputError
from chainrule.runtime import load_component
from chainrule.runtime._schema import Array, Float32, Float64


class InputSchema(BaseModel):
    x: Array[("n",), Float64]
    either: Array[(3,), Float32] | Array[(3, 3), Float64] | None = None
    scale: Float32 = 1.0


class OutputSchema(BaseModel):
    y: Array[("n",), Float64]


def component(apply):
    module = ModuleType("some_component")
    module.InputSchema, module.OutputSchema, module.apply = InputSchema, OutputSchema, apply
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

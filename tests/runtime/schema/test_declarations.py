"""What can be declared, and what a declaration remembers."""

import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from pydantic import BaseModel, RootModel, TypeAdapter, create_model
from typing_extensions import TypedDict

from chainrule._describe import describe_array
from chainrule.errors import DefinitionError
from chainrule.runtime import (
    Array,
    ArraySpec,
    BFloat16,
    Differentiable,
    Float32,
    Float64,
    Int32,
    ShapeDType,
    load_component,
)
from chainrule.runtime.internal import array_leaves, is_array_type


def test_a_type_carries_its_declaration():
    assert Array[(2, None), Float32].spec == ArraySpec((2, None), "float32")
    assert Array[..., None].spec == ArraySpec(None, None)
    assert Float64.spec == ArraySpec((), "float64")
    assert BFloat16.spec.dtype == "bfloat16"
    named = Array[("n", 3), "float64", "m/s"].spec
    assert named == ArraySpec((None, 3), "float64", dimension_names=("n", None), units="m/s")


def test_types_show_as_they_are_written():
    assert repr(Array[("n", 3), Float64, "m/s"]) == "Array[('n', 3), 'float64', 'm/s']"
    assert repr(Differentiable[Array[..., None]]) == "Differentiable[Array[..., None]]"
    assert "Array[(3,), 'float64']" in repr(list[Array[(3,), Float64]])


@pytest.mark.parametrize("key", [3, (3,), ((3,),), ((3,), Float64, "m")])
def test_a_shape_needs_a_shape_and_a_dtype(key):
    with pytest.raises(DefinitionError, match="needs a shape and a dtype") as caught:
        ShapeDType[key]
    assert caught.value.code == "bad_array_type"


def test_a_differentiable_python_number_is_told_how_to_write_it():
    with pytest.raises(
        DefinitionError, match=r"Write Differentiable\[Float64\] for a number"
    ) as caught:
        Differentiable[float]
    assert caught.value.code == "bad_array_type"


def test_equal_declarations_are_one_type():
    assert Array[(3,), Float64] is Array[(3,), "float64"]
    assert Array[(3,), Float64] is not Differentiable[Array[(3,), Float64]]


@pytest.mark.parametrize("integer", [np.int8, np.int32, np.int64, np.uint16])
def test_sizes_may_be_numpy_integers(integer):
    assert Array[(integer(81), "n"), Float64] is Array[(81, "n"), Float64]


@pytest.mark.parametrize("size", [np.bool_(True), np.int32(-1), np.float64(3.0), True])
def test_other_numbers_are_no_sizes(size):
    with pytest.raises(DefinitionError):
        Array[(size,), Float64]


def test_types_show_what_was_written():
    assert repr(Array[(2, None), "float32"]) == "Array[(2, None), 'float32']"
    assert repr(Array[("n", 3), Float64, "m"]) == "Array[('n', 3), 'float64', 'm']"
    assert repr(Differentiable[Float32]) == "Differentiable[Array[(), 'float32']]"


def test_differentiable_is_a_flag_of_arrays():
    assert Differentiable[Float32].spec.differentiable
    assert not Float32.spec.differentiable
    assert is_array_type(Float32)
    assert not is_array_type(Array)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Array[[2], Float64],
        lambda: Array[(-1,), Float64],
        lambda: Array[(True,), Float64],
        lambda: Array[("not a name",), Float64],
        lambda: Array[(2,), np.dtype("float64")],
        lambda: Array[(2,), "Float64"],
        lambda: Array[(2,)],
        lambda: Array[(2,), Float64, "no_such_unit"],
        lambda: Array[(2,), Float64, 3],
        lambda: Differentiable[int],
        lambda: Differentiable[list[Float64]],
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_written(declare):
    with pytest.raises(DefinitionError):
        declare()


def test_a_bare_array_is_not_a_field_type():
    with pytest.raises(DefinitionError, match=r"Array\[\.\.\., None\]"):
        TypeAdapter(Array)


class Part(BaseModel):
    weight: Differentiable[Float32]
    label: str = ""


class Left(BaseModel):
    value: Differentiable[Array[(3,), Float64]]


class Right(BaseModel):
    value: Array[(3,), Float64]


class Rows(RootModel[list[Differentiable[Array[(None,), Float64]]]]):
    pass


class Everything(BaseModel):
    scalar: Float64
    parts: list[Part]
    by_name: dict[str, Part]
    fixed: tuple[Differentiable[Float32], Int32]
    open_ended: tuple[Differentiable[Float64], ...]
    maybe: Differentiable[Array[(2,), Float64]] | None = None
    either: Differentiable[Array[(3,), Float32]] | Array[(4,), Float32]
    model_either: Left | Right
    rows: Rows
    number: int = 3


def test_leaves_are_patterns_with_their_own_declaration():
    leaves = array_leaves(Everything)
    assert list(leaves) == [
        "scalar", "parts.[].weight", "by_name.{}.weight", "fixed.[0]", "fixed.[1]",
        "open_ended.[]", "maybe", "either", "model_either.value", "rows.[]",
    ]  # fmt: skip
    assert leaves["fixed.[0]"] == ArraySpec((), "float32", True)
    assert leaves["fixed.[1]"] == ArraySpec((), "int32")
    assert leaves["either"] == ArraySpec((None,), "float32", True)
    assert leaves["model_either.value"] == ArraySpec((3,), "float64", True)


def test_differentiable_leaves_leave_out_the_other_members():
    module = ModuleType("identity")
    vars(module).update(
        InputSchema=Everything, OutputSchema=Everything, apply=lambda inputs: inputs
    )
    leaves = load_component(module).differentiable_inputs
    assert "scalar" not in leaves
    assert "fixed.[1]" not in leaves
    assert leaves["either"] == ArraySpec((3,), "float32", True)
    assert leaves["rows.[]"] == ArraySpec((None,), "float64", True)


def test_leaves_of_a_root_model_start_at_the_root():
    assert list(array_leaves(Rows)) == ["[]"]
    assert list(array_leaves(RootModel[Float64])) == [""]


class Node(BaseModel):
    value: Float64
    children: list["Node"] = []


class Tag(BaseModel):
    name: str
    tags: list["Tag"] = []


Vector = Differentiable[Array[(3,), Float64]]


class Typed(TypedDict):
    cells: list[Vector]


class Named(NamedTuple):
    cells: list[Vector]


@dataclass
class Data:
    cells: list[Vector]


@dataclass
class Plain:
    cells: Array[(3,), Float64]
    again: "Plain | None" = None


@pytest.mark.parametrize("record", [Typed, Named, Data])
def test_a_differentiable_array_to_which_no_path_leads_is_refused(record):
    model = create_model("Model", field=(list[record], ...))
    with pytest.raises(
        DefinitionError, match=r"'field\.\[\]\.cells\.\[\]' .* not a pydantic model"
    ) as caught:
        array_leaves(model)
    assert caught.value.code == "bad_schema"


def test_other_arrays_in_a_dataclass_are_validated_and_not_listed():
    model = create_model("Model", field=(Plain, ...))
    assert model(field={"cells": [1, 2, 3]}).field.cells.dtype == np.float64
    assert array_leaves(model) == {}


def test_arrays_in_a_model_that_contains_itself_have_no_finite_paths():
    with pytest.raises(DefinitionError, match="Node contains itself") as caught:
        array_leaves(Node)
    assert caught.value.code == "recursive_schema"
    assert array_leaves(Tag) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((3, 4)), "f64[3,4]"),
        (np.float32(1), "f32[]"),
        (np.zeros(2, np.uint8), "u8[2]"),
        (np.zeros(0, bool), "bool[0]"),
        (np.zeros(1, np.complex64), "c64[1]"),
        ([1, 2], "list"),
    ],
)
def test_describe_array(value, text):
    assert describe_array(value) == text


def test_optional_packages_are_imported_only_when_a_field_needs_them():
    code = (
        "import sys; from chainrule.runtime import Array, BFloat16, Float64; Array[(3,), Float64]; "
        "print(sorted({'jax', 'pint', 'ml_dtypes', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

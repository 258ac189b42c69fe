"""One name, one size: in one model, in nested models, across the inputs and outputs of one call."""

from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, RootModel, ValidationError, create_model, field_validator

from chainrule.runtime import Array, Float32, Float64, ShapeDType
from chainrule.runtime._schema import with_dimension_check


def conflict(validate):
    with pytest.raises(ValidationError) as caught:
        validate()
    (error,) = caught.value.errors()
    assert error["type"] == "array_dimension_conflict"
    return error["ctx"]


@with_dimension_check
class Cloud(BaseModel):
    points: Array[("n", 3), Float64]
    masses: Array[("n",), Float64]


def cloud(n, m=None):
    return {"points": np.ones((n, 3)), "masses": np.ones(n if m is None else m)}


def test_fields_of_one_model_agree():
    assert Cloud(**cloud(4)).masses.shape == (4,)
    assert Cloud(**cloud(0)).masses.shape == (0,)
    assert conflict(lambda: Cloud(**cloud(4, 5))) == {
        "dimension": "n", "fields": ["points", "masses"], "sizes": [4, 5],
    }  # fmt: skip


def test_the_message_names_dimension_fields_and_sizes():
    with pytest.raises(ValidationError, match=r"'n' has size 4 in points but size 5 in masses"):
        Cloud(**cloud(4, 5))


def test_every_way_to_validate_checks():
    conflict(lambda: Cloud.model_validate(cloud(1, 2)))
    text = Cloud(**cloud(2)).model_dump_json().replace("[1.0,1.0]", "[1.0,1.0,1.0]")
    text = text.replace('"masses":{"object_type":"array","shape":[2]', '"masses":{"shape":[3]')
    conflict(lambda: Cloud.model_validate_json(text))


class Middle(BaseModel):
    cloud: Cloud


@with_dimension_check
class Scene(BaseModel):
    first: Middle
    others: list[Middle] = []
    named: dict[str, Cloud] = {}
    weights: Array[("n",), Float32] | None = None
    sizes: tuple[Array[("k",), Float64], Array[("k", "k"), Float64]] = ([1.0], [[1.0]])


def test_models_inside_models_agree_although_they_hold_no_arrays_themselves():
    one = {"cloud": cloud(2)}
    assert Scene(first=one, others=[one, one], named={"a": cloud(2)}, weights=[1, 2])
    found = conflict(lambda: Scene(first=one, others=[one, {"cloud": cloud(3)}]))
    assert found["fields"] == ["first.cloud.points", "others.[1].cloud.points"]
    found = conflict(lambda: Scene(first=one, named={"a b": cloud(3)}))
    assert found["fields"][1] == "named.{a b}.points"
    found = conflict(lambda: Scene(first=one, weights=[1.0]))
    assert found["fields"][1] == "weights"
    found = conflict(lambda: Scene(first=one, sizes=([1, 2], np.ones((2, 3)))))
    assert found["fields"] == ["sizes.[0]", "sizes.[1]"]


class Heavier(Cloud):
    extra: float = 0.0


def test_subclasses_and_instances_are_checked():
    conflict(lambda: Heavier(**cloud(1, 2)))
    inside = with_dimension_check(create_model("Inside", left=(Cloud, ...), right=(Cloud, ...)))
    conflict(lambda: inside(left=Cloud(**cloud(1)), right=Cloud(**cloud(2))))


def test_root_models():
    rows = with_dimension_check(RootModel[list[Array[("n",), Float64]]])
    assert len(rows([[1], [2]]).root) == 2
    assert conflict(lambda: rows([[1], [2, 3]]))["fields"] == ["[0]", "[1]"]


class Tetra(BaseModel):
    kind: Literal["tetra"] = "tetra"
    corners: Array[("n",), Float64]


class Hexa(BaseModel):
    corners: Array[("m",), Float64]
    faces: Array[("m",), Float64]


@with_dimension_check
class Mesh(BaseModel):
    cells: Tetra | Hexa
    points: Array[("n",), Float64]
    either: Array[("n",), Float32] | Array[("m", None), Float64] | None = None


def test_members_of_a_union_that_were_tried_and_dropped_leave_no_trace():
    mesh = Mesh(cells={"corners": np.ones(5), "faces": np.ones(5)}, points=np.ones(4))
    assert isinstance(mesh.cells, Hexa)
    conflict(lambda: Mesh(cells={"corners": np.ones(5)}, points=np.ones(4)))
    hexa = {"corners": np.ones(5), "faces": np.ones(5)}
    assert Mesh(cells=hexa, points=np.ones(4), either=np.ones((5, 2)))
    found = conflict(lambda: Mesh(cells=hexa, points=np.ones(4), either=np.ones((6, 2))))
    assert found["dimension"] == "m"


@with_dimension_check
class Unions(BaseModel):
    """Members of different ranks, whose declarations have no common one."""

    a: Array[("n",), Float64] | Array[("m", None), Float64]
    b: Array[("n",), Float64] | Array[("m", None), Float64]


def test_names_that_only_members_of_unions_have():
    assert Unions(a=np.ones(3), b=np.ones((4, 1)))
    assert conflict(lambda: Unions(a=np.ones(3), b=np.ones(4)))["dimension"] == "n"
    assert conflict(lambda: Unions(a=np.ones((3, 1)), b=np.ones((4, 1))))["dimension"] == "m"


@with_dimension_check
class Normalised(BaseModel):
    a: Annotated[Array[("n",), Float64], Field(description="a")]
    b: Array[("n",), Float64]

    @field_validator("a")
    @classmethod
    def double(cls, value):
        return 2 * value


def test_values_that_the_authors_validators_replaced_are_checked():
    assert Normalised(a=[1], b=[1]).a.tolist() == [2.0]
    conflict(lambda: Normalised(a=[1], b=[1, 2]))


class Own(BaseModel):
    a: Array[("n",), Float64]

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        cls.asked = True
        return handler(source)


def test_a_models_own_core_schema_method_is_still_called():
    outer = with_dimension_check(create_model("Outer", one=(Own, ...), two=(Own, ...)))
    assert Own.asked
    conflict(lambda: outer(one={"a": [1]}, two={"a": [1, 2]}))


@with_dimension_check
class Result(BaseModel):
    forces: Array[("n", 3), Float64]


def test_one_table_spans_the_inputs_and_outputs_of_a_call():
    dims = {}
    Cloud.model_validate(cloud(2), context={"dims": dims})
    assert dims == {"n": (2, "points")}
    assert Result.model_validate({"forces": np.ones((2, 3))}, context={"dims": dims})
    found = conflict(
        lambda: Result.model_validate({"forces": np.ones((3, 3))}, context={"dims": dims})
    )
    assert found == {"dimension": "n", "fields": ["points", "forces"], "sizes": [2, 3]}


def test_another_call_starts_anew():
    assert Cloud(**cloud(2))
    conflict(lambda: Cloud(**cloud(2, 3)))
    assert Cloud(**cloud(3))


def test_shapes_without_data_agree_too():
    shapes = {"a": (ShapeDType[("n",), Float64], ...), "b": (ShapeDType[("n", 2), None], ...)}
    abstract = with_dimension_check(create_model("Abstract", **shapes))
    shape = {"shape": [3], "dtype": "float64"}
    assert abstract(a=shape, b={"shape": [3, 2], "dtype": "int8"})
    conflict(lambda: abstract(a=shape, b={"shape": [4, 2], "dtype": "int8"}))


@with_dimension_check
class Cells(BaseModel):
    cells: dict[str, Array[("n",), Float64]]


def test_the_message_writes_keys_as_paths_do():
    with pytest.raises(ValidationError) as caught:
        Cells(cells={"{sizes}": [1.0], "sizes": [1.0, 2.0]})
    (error,) = caught.value.errors()
    assert error["msg"] == (
        r"Dimension 'n' has size 1 in cells.{\{sizes\}} but size 2 in cells.{sizes}; "
        "one name means one size in one call."
    )
    assert error["ctx"]["fields"] == [r"cells.{\{sizes\}}", "cells.{sizes}"]

"""The flattening rule of all doors: differentiable leaves in the order of the schema, with their facts."""

import json
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import pytest
from pydantic import BaseModel, Field

from chainrule._trees import get_at_path
from chainrule.runtime import Array, Bounds, Differentiable, Float32, Float64, component
from chainrule.runtime.internal import Document, Subject, complete_inputs

Vector = Differentiable[Array[("n",), Float64, "m"]]


class Wing(BaseModel):
    twist: Vector
    chord: Annotated[Vector, Field(gt=0)]


@component(derivatives="finite")
def area(
    wings: list[Wing],
    table: dict[str, Differentiable[Float64]],
    mode: str = "fine",
    height: Annotated[Differentiable[Float32], Field(json_schema_extra={"minimum": 0})] = 1.0,
) -> Differentiable[Float64]:
    return 1.0


def test_leaves_come_in_the_order_of_the_schema():
    wing = {"chord": [1.0, 2.0], "twist": [0.0, 0.0]}
    tree = {"table": {"z": 1.0, "a b": 2.0}, "height": 1.0, "wings": [wing, wing]}
    # As a server sends it: the keys of objects are sorted.
    document = Document(json.loads(json.dumps(area.openapi_schema, sort_keys=True)))
    leaves = document.leaves("inputs", tree)
    assert [leaf.path for leaf in leaves] == [
        "wings.[0].twist", "wings.[0].chord", "wings.[1].twist", "wings.[1].chord",
        "table.{a b}", "table.{z}", "height",
    ]  # fmt: skip
    assert [leaf.size for leaf in leaves] == [2, 2, 2, 2, 1, 1, 1]
    chord, height = leaves[1], leaves[-1]
    assert (chord.units, chord.bounds, chord.dtype) == ("m", Bounds(gt=0), "float64")
    assert (chord.lower, chord.upper) == (np.nextafter(0, 1), np.inf)
    assert (height.bounds, height.lower, height.shape) == (Bounds(ge=0), 0.0, ())


def test_shapes_without_data_are_leaves_too():
    (leaf,) = Document(area.openapi_schema).leaves(
        "outputs", {"result": {"shape": [], "dtype": "float64"}}
    )
    assert (leaf.path, leaf.shape, leaf.dtype) == ("result", (), "float64")


def test_exclusive_bounds_in_the_precision_of_the_leaf():
    bounds = Bounds(gt=1.0, lt=2.0)
    assert bounds.smallest("float32") == np.nextafter(np.float32(1), np.float32(2))
    assert bounds.largest("float64") == np.nextafter(2.0, 1)
    assert bounds.smallest("int32") == 2
    assert Bounds(gt=1.0, ge=3.0).smallest("float64") == 3.0


class Spar(BaseModel):
    web: Differentiable[Float64] = 1.5
    height: Differentiable[Float64] = 2.0


class Plan(BaseModel):
    span: Differentiable[Array[(2,), Float64]] = np.array([1.0, 2.0])
    front: Spar
    made: Spar = Field(default_factory=Spar)
    rear: Spar = Spar(web=3.0)
    spare: Spar | None = None
    more: list[Spar] = []
    sweep: Differentiable[Float64] | None = 4.0


class Mass(BaseModel):
    mass: Differentiable[Float64]


@component(derivatives="finite")
def weigh(inputs: Plan) -> Mass:
    return {"mass": 1.0}


@pytest.mark.parametrize(
    "given",
    [
        {"front": {}},
        {"front": {"web": 1.0}, "made": {}, "spare": {}, "more": [{"web": 5.0}, {}]},
        {"front": {}, "rear": {"height": 1.0}, "span": [3.0, 4.0], "sweep": None},
    ],
)
def test_a_component_elsewhere_has_the_same_defaults(given):
    """Its OpenAPI document says them."""
    elsewhere = SimpleNamespace(openapi_schema=json.loads(json.dumps(weigh.openapi_schema)))
    here, there = complete_inputs(weigh, given), complete_inputs(elsewhere, given)
    document = Document(weigh.openapi_schema)
    found = [
        {leaf.path: np.asarray(get_at_path(tree, leaf.path)).tolist() for leaf in leaves}
        for tree in (here, there)
        for leaves in [document.leaves("inputs", tree)]
    ]
    assert found[0] == found[1]
    assert found[0]["made.web"] == 1.5


class Elsewhere:
    """A component of which only its document and endpoints are here."""

    def __init__(self, component):
        self.openapi_schema = component.openapi_schema
        self.differentiable_inputs = component.differentiable_inputs
        self.differentiable_outputs = component.differentiable_outputs
        self.apply = component.apply


def test_checks_look_at_inputs_that_are_left_to_their_defaults():
    here, there = (Subject(each, {"front": {}}) for each in (weigh, Elsewhere(weigh)))
    assert set(here.input_paths) == set(there.input_paths)
    assert "rear.web" in here.input_paths

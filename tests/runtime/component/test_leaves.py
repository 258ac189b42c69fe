"""The flattening rule of all doors: differentiable leaves in the order of the schema, with their facts."""

import json
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Bounds, Differentiable, Float32, Float64, component
from chainrule.runtime.internal import Document

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

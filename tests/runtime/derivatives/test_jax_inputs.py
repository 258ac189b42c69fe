"""Inputs are taken apart the same way whether they are flat mappings, which are quick, or anything else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model, field_serializer

from chainrule.runtime.jax_recipes import jax_apply, jax_jvp

X, Y = np.arange(3.0), np.ones((2, 2), np.int32)


class Flat(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    y: np.ndarray
    x: np.ndarray


class Serialized(Flat):
    @field_serializer("x")
    def doubled(self, x):
        return 2 * x


class Counted:
    """A function that keeps what it was given, each time when JAX traces it."""

    def __init__(self):
        self.given = []

    def __call__(self, inputs):
        self.given.append(inputs)
        arrays = [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.core.Tracer)]
        return {"z": 2.0 * arrays[0]}

    def push(self, inputs, path="x"):
        """Ask for a Jacobian-vector product, whose program is compiled once for equal frames."""
        return jax_jvp(self, inputs, [path], ["z"], {path: np.ones(3)})["z"]


def are_one_program(left, right):
    """Whether what was compiled for one of two inputs serves the other."""
    function = Counted()
    function.push(left)
    before = len(function.given)
    function.push(right)
    return len(function.given) == before


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ({"x": X, "y": Y}, "x"),
        ({"y": Y, "x": X}, "x"),
        (Flat(x=X, y=Y), "x"),
        ({2: Y, 1: X}, "{1}"),
        ({True: X}, "{True}"),
    ],
)
def test_a_flat_mapping_reaches_the_function_as_it_is(inputs, path):
    tree = dict(inputs) if isinstance(inputs, BaseModel) else inputs
    function = Counted()
    function.push(inputs, path)
    for given in function.given:
        shapes = {key: value.shape for key, value in given.items()}
        assert shapes == {key: value.shape for key, value in tree.items()}


def test_keys_that_are_equal_but_not_the_same_make_other_programs():
    function = Counted()
    function.push({True: X}, "{True}")
    assert all(key is True for given in function.given for key in given)
    before = len(function.given)
    function.push({1: X}, "{1}")
    assert len(function.given) > before
    assert all(key is not True for given in function.given[before:] for key in given)


def test_what_is_not_an_array_is_part_of_the_program():
    assert not are_one_program({"x": X, "n": 2}, {"x": X, "n": 3})
    assert are_one_program({"x": X, "n": 2}, {"x": 2 * X, "n": 2})
    function = Counted()
    function.push({"x": X, "words": np.array(["a", "b"]), "n": 2})
    assert all(given["n"] == 2 for given in function.given)
    assert all(given["words"].tolist() == ["a", "b"] for given in function.given)


class Opaque:
    __hash__ = None

    def __reduce__(self):
        raise TypeError("cannot be pickled")

    def __repr__(self):
        return "Opaque()"


@dataclass
class Table:
    values: np.ndarray


def test_programs_differ_where_a_value_does():
    # Equal by `==`, or by what NumPy prints of a long array, and yet not the same program.
    long, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1.0
    for left, right in [(0.0, -0.0), (1, 1.0), (1, True), (Opaque(), Opaque())]:
        assert not are_one_program({"x": X, "s": left}, {"x": X, "s": right})
    assert not are_one_program({"x": X, "s": Table(long)}, {"x": X, "s": Table(other)})


def test_programs_agree_where_values_do():
    for left, right in [(float("nan"), float("nan")), (Table(np.zeros(9)), Table(np.zeros(9)))]:
        assert are_one_program({"x": X, "s": left}, {"x": X, "s": right})


def test_the_sign_of_zero_is_compiled_in():
    divide = jax.jit(lambda d: {"y": d["x"] / d["s"]})
    for zero, expected in [(0.0, np.inf), (-0.0, -np.inf)]:
        inputs = {"x": np.ones(1), "s": zero}
        assert jax_jvp(divide, inputs, ["x"], ["y"], {"x": [1.0]})["y"][0] == expected


class Remembering(Flat):
    @cached_property
    def total(self):
        return self.x.sum(keepdims=True)


@pytest.mark.parametrize("extra", [{}, {"n": 3}])
def test_a_cached_property_is_no_input(extra):
    model = create_model("Model", __base__=Remembering, **{n: (int, v) for n, v in extra.items()})
    inputs, seen = model(x=X, y=Y), model(x=X, y=Y)
    assert seen.total == 3.0
    assert are_one_program(inputs, seen)
    function = Counted()
    function.push(seen)
    assert all(given.keys() == model.model_fields.keys() for given in function.given)


def test_a_model_with_serializers_is_dumped():
    found = jax_apply(lambda inputs: {"z": inputs["x"]}, Serialized(x=X, y=Y))
    np.testing.assert_array_equal(found["z"], 2 * X)


def test_names_of_a_model_that_is_dumped_by_alias():
    model = create_model("Model", __config__=ConfigDict(serialize_by_alias=True),
                         x=(Any, Field(serialization_alias="y")))  # fmt: skip
    assert jax_apply(lambda inputs: {"z": inputs["y"]}, model(x=X))["z"] is X

"""Inputs are taken apart the same way whether they are flat mappings, which are quick, or anything else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model, field_serializer

from chainrule._partition import Template
from chainrule.runtime.jax_recipes import jax_apply, jax_jvp
from chainrule.runtime.jax_recipes._programs import split

X, Y = np.arange(3.0), np.ones((2, 2), np.int32)


class Flat(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    y: np.ndarray
    x: np.ndarray


class Serialized(Flat):
    @field_serializer("x")
    def doubled(self, x):
        return 2 * x


@pytest.mark.parametrize(
    "inputs", [{"x": X, "y": Y}, {"y": Y, "x": X}, Flat(x=X, y=Y), {2: X, 1: Y}, {True: X}, {}]
)
def test_a_flat_mapping_is_taken_apart_as_jax_does_it(inputs):
    tree = dict(inputs) if isinstance(inputs, BaseModel) else inputs
    leaves, structure = jax.tree.flatten(tree)
    frame, arrays = split(inputs)
    assert frame == Template(structure, (None,) * len(leaves))
    assert all(mine is theirs for mine, theirs in zip(arrays, leaves, strict=True))
    assert frame.join(arrays).keys() == tree.keys()


def test_keys_that_are_equal_but_not_the_same_make_other_frames():
    (key,) = split({True: X})[0].join((X,))
    assert key is True
    (key,) = split({1: X})[0].join((X,))
    assert key is not True


def test_what_is_not_an_array_is_part_of_the_frame():
    frame, arrays = split({"x": X, "n": 2})
    assert len(arrays) == 1
    assert frame != split({"x": X, "n": 3})[0]
    assert frame.join(arrays)["n"] == 2
    words, none = split({"x": np.array(["a", "b"])})
    assert none == ()
    assert words.join(())["x"].tolist() == ["a", "b"]


class Opaque:
    __hash__ = None

    def __reduce__(self):
        raise TypeError("cannot be pickled")

    def __repr__(self):
        return "Opaque()"


@dataclass
class Table:
    values: np.ndarray


def test_frames_differ_where_the_program_could():
    # Equal by `==`, or by what NumPy prints of a long array, and yet not the same program.
    long, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1.0
    for left, right in [(0.0, -0.0), (1, 1.0), (1, True), (Opaque(), Opaque())]:
        assert split({"s": left})[0] != split({"s": right})[0]
    assert split({"s": Table(long)})[0] != split({"s": Table(other)})[0]


def test_frames_agree_where_the_program_does():
    for left, right in [(float("nan"), float("nan")), (Table(np.zeros(9)), Table(np.zeros(9)))]:
        assert split({"s": left})[0] == split({"s": right})[0]
        assert hash(split({"s": left})[0]) == hash(split({"s": right})[0])


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
    inputs = model(x=X, y=Y)
    before, _ = split(inputs)
    assert inputs.total == 3.0
    after, arrays = split(inputs)
    assert before == after
    assert len(arrays) == 2


def test_a_model_with_serializers_is_dumped():
    _, (x, _) = split(Serialized(x=X, y=Y))
    np.testing.assert_array_equal(x, 2 * X)


def test_names_of_a_model_that_is_dumped_by_alias():
    model = create_model("Model", __config__=ConfigDict(serialize_by_alias=True),
                         x=(Any, Field(serialization_alias="y")))  # fmt: skip
    assert jax_apply(lambda inputs: {"z": inputs["y"]}, model(x=X))["z"] is X

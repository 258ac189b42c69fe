"""Properties that hold for any data: plain trees, hashes, names of files, compatibility with oneself."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import chainrule.runtime._component as package
from chainrule._content_store import hash_parts
from chainrule._trees import flatten_with_paths, get_at_path
from chainrule.cli._payload import read_payload
from chainrule.runtime import Array, Float64, Grants, Limits, component
from chainrule.runtime.internal import to_plain

arrays = st.lists(st.floats(allow_nan=False), max_size=3).map(np.array)
names = st.text(min_size=1, max_size=6)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names | arrays


def containers(inner):
    return st.dictionaries(names, inner, max_size=3) | st.lists(inner, max_size=3)


trees = st.recursive(leaves, containers)


class Holder(BaseModel):
    data: dict[str, Array[(None,), Float64]]
    rest: list[float] = []


@given(trees)
def test_plain_trees_are_fixed_points(tree):
    once = to_plain(tree)
    again = to_plain(once)
    for path, leaf in flatten_with_paths(once).items():
        assert get_at_path(again, path) is leaf  # arrays and values are passed on, never copied


@given(st.dictionaries(names, arrays, max_size=4), st.lists(st.floats(allow_nan=False), max_size=3))
def test_an_identity_component_is_the_identity(data, rest):
    result = identity.apply({"data": data, "rest": rest})
    assert result["rest"] == rest
    assert result["data"].keys() == data.keys()
    for key, array in data.items():
        np.testing.assert_array_equal(result["data"][key], array)
        assert not np.shares_memory(result["data"][key], array)


@component
def identity(holder: Holder) -> Holder:
    return holder


parts = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=4)


@given(parts, parts)
def test_different_parts_have_different_hashes(left, right):
    assert (hash_parts(left) == hash_parts(right)) == (left == right)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=5))
def test_the_last_assignment_wins(pairs):
    values = [f"deep.{name}={number}" for name, number in pairs]
    payload = read_payload('{"inputs": {}}', values, grants=Grants(), limits=Limits())
    assert payload["inputs"].get("deep", {}) == dict(pairs)


MODULES = [module.name for module in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"{package.__name__}.{name}")
    assert doctest.testmod(module).failed == 0
    assert module.__doc__

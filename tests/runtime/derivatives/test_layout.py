import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import InputError, PathError
from chainrule.runtime._derivatives._layout import (
    Layout,
    canonical,
    check_keys,
    read_arrays,
)

shapes = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=4)


@given(shapes)
def test_split_undoes_join(shapes):
    arrays = {f"p{i}": np.random.default_rng(i).normal(size=s) for i, s in enumerate(shapes)}
    layout = Layout.of(arrays)
    again = layout.split(layout.join(arrays))
    assert layout.size == sum(a.size for a in arrays.values())
    for path, array in arrays.items():
        np.testing.assert_array_equal(again[path], array)


@given(shapes)
def test_locate_finds_every_element(shapes):
    arrays = {f"p{i}": np.zeros(s) for i, s in enumerate(shapes)}
    layout = Layout.of(arrays)
    vector = np.arange(layout.size)
    parts = layout.split(vector)
    for element in vector:
        path, index = layout.locate(int(element))
        assert parts[path][index] == element


def test_blocks_of_a_matrix():
    rows, columns = Layout(("y", "s"), ((2,), ())), Layout(("x",), ((2, 2),))
    matrix = np.arange(12.0).reshape(3, 4)
    blocks = rows.split_matrix(matrix, columns)
    np.testing.assert_array_equal(blocks["y"]["x"], matrix[:2].reshape(2, 2, 2))
    np.testing.assert_array_equal(blocks["s"]["x"], matrix[2].reshape(2, 2))


def test_same_selection_is_same_tuple():
    assert canonical({"b", "a"}) == canonical(["a", "b", "a"]) == ("a", "b")
    assert canonical("x") == ("x",)


def test_paths_must_be_arrays():
    with pytest.raises(PathError, match="found NoneType") as caught:
        read_arrays({"x": None}, ["x"])
    assert caught.value.code == "path_not_differentiable"
    with pytest.raises(PathError):
        read_arrays({"x": "text"}, ["x"])


def test_vector_names_exactly_the_paths():
    with pytest.raises(InputError, match=r"missing \['b'\], unexpected \['c'\]"):
        check_keys({"a": 1, "c": 2}, {"a", "b"}, "tangent_vector")

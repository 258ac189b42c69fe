import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import InputError, PathError
from chainrule.runtime.derivatives import finite_difference_jacobian, finite_difference_jvp
from chainrule.runtime.internal import Layout

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


def double(inputs):
    return {"y": 2 * inputs["x"]}


@pytest.mark.parametrize("selection", [["x", "x"], {"x"}, "x"])
def test_a_path_that_is_selected_twice_counts_once(selection):
    found = finite_difference_jacobian(double, {"x": np.ones(2)}, selection, ["y"])
    np.testing.assert_allclose(found["y"]["x"], 2 * np.eye(2), atol=1e-6)


@pytest.mark.parametrize("value", [None, "text"])
def test_paths_must_be_arrays(value):
    with pytest.raises(PathError) as caught:
        finite_difference_jvp(double, {"x": value}, {"x"}, {"y"}, {"x": 1.0})
    assert caught.value.code == "path_not_differentiable"


def test_vector_names_exactly_the_paths():
    inputs = {"x": 1.0, "b": 2.0}
    with pytest.raises(InputError, match=r"missing \['b'\], unexpected \['c'\]"):
        finite_difference_jvp(double, inputs, {"x", "b"}, {"y"}, {"x": 1, "c": 2})

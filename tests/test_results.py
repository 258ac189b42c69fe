"""`Result`: a dictionary that people can read."""

import copy
import json
import pickle
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest

import chainrule
from chainrule._results import Result
from chainrule.runtime import Array, Differentiable, Float64


@chainrule.component(framework="numpy", derivatives="finite")
def wing(
    angle: Differentiable[Array[(), Float64, "deg"]],
    shape: Array[("n",), Float64] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
) -> Differentiable[Array[("n",), Float64, "Pa"]]:
    return angle * shape


@pytest.fixture
def answer():
    return wing.apply({"angle": 2.0})


def test_it_is_a_dictionary(answer):
    plain = {"result": answer["result"]}
    assert isinstance(answer, dict)
    assert repr(answer) == repr(plain)
    assert type(pickle.loads(pickle.dumps(answer))) is dict
    assert type(copy.copy(answer)) is type(copy.deepcopy(answer)) is dict
    assert json.dumps(Result.of({"a": 1})) == '{"a": 1}'


def test_jax_takes_it_apart(answer):
    doubled = jax.tree.map(lambda leaf: 2 * leaf, answer)
    np.testing.assert_array_equal(doubled["result"], 4.0 * np.arange(7))
    path, _ = jax.tree_util.tree_leaves_with_path(answer)[0]
    assert jax.tree_util.keystr(path) == "['result']"


def test_text_has_type_range_and_units(answer):
    assert str(answer) == "result  f64[7]  min 0 · mean 6 · max 12 Pa"
    gradient = wing.vector_jacobian_product(
        {"angle": 2.0}, ["angle"], ["result"], {"result": np.ones(7)}
    )
    assert str(gradient) == "angle  f64[]  21"


def test_every_kind_of_leaf_has_a_line():
    lines = str(
        Result.of(
            {
                "nested": {"list": [1, {"deep": True}]},
                "complex": np.full(9, 3 + 4j),
                "odd": np.array([1.0, np.nan] * 5),
                "empty": np.zeros(0),
                "text": "x" * 100,
                "none": None,
            }
        )
    ).splitlines()
    assert [line.split()[0] for line in lines] == [
        "nested.list.[0]", "nested.list.[1].deep", "complex", "odd", "empty", "text", "none",
    ]  # fmt: skip
    assert lines[2].endswith("|·| min 5 · mean 5 · max 5")
    assert lines[3].endswith("min 1 · mean 1 · max 1 · 5 not finite")
    assert all(len(line) < 100 for line in lines)


@pytest.mark.parametrize("shape", [(50,), (30, 20), (3, 4, 5), (2, 100_000), (100_000, 2)])
def test_notebooks_show_a_small_picture(shape):
    html = Result.of(
        {"<field>": np.arange(np.prod(shape), dtype=float).reshape(shape)}
    )._repr_html_()
    table = ElementTree.fromstring(_close_images(html))
    assert table.find(".//th/code").text == "<field>"
    assert table.find(".//svg") is not None or table.find(".//img") is not None
    assert len(html) < 20_000


def _close_images(html):
    """HTML in which images are closed, as XML asks for."""
    if "<img" not in html:
        return html
    head, _, tail = html.partition("<img ")
    inside, _, rest = tail.partition(">")
    return f"{head}<img {inside}/>{rest}"


def test_a_png_is_what_it_says():
    pytest.importorskip("matplotlib")
    import base64
    import io

    from matplotlib.image import imread

    field = np.arange(12.0).reshape(3, 4)
    html = Result.of({"y": field})._repr_html_()
    data = html.partition("base64,")[2].partition('"')[0]
    pixels = imread(io.BytesIO(base64.b64decode(data)))
    assert pixels.shape == (3, 4, 3)
    brightness = pixels.sum(axis=2).ravel()
    assert brightness[-1] > brightness[0]  # dark is low, light is high


def test_empty_containers_and_abstract_arrays_are_lines():
    result = Result({"found": [], "more": {}, "y": {"shape": [3, 4], "dtype": "float64"}, "n": 1})
    assert [line.split() for line in str(result).splitlines()] == [
        ["found", "list", "[]"],
        ["more", "dict", "{}"],
        ["y", "f64[3,4]"],
        ["n", "int", "1"],
    ]
    named = Result({"plot": {"shape": "circle", "dtype": 3}})
    assert "plot.shape" in str(named)

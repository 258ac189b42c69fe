"""`spy`: the pattern of every kind of Jacobian."""

import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental.sparse import BCOO

from chainrule import view
from chainrule.elimination import jacobian
from chainrule.errors import InputError

MATRIX = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])


def dense(block):
    found = np.zeros(block.shape, bool)
    found[block.rows, block.columns] = True
    return found


@pytest.mark.parametrize(
    "form", [np.asarray, jnp.asarray, scipy.sparse.csr_array, scipy.sparse.coo_matrix, BCOO.fromdense],
)  # fmt: skip
def test_matrices_of_all_kinds(form):
    (block,) = view.spy(form(MATRIX)).blocks
    assert block.name == ""
    assert block.count == 3
    np.testing.assert_array_equal(dense(block), MATRIX != 0)


def test_padding_of_jax_is_not_drawn():
    (block,) = view.spy(BCOO.fromdense(MATRIX, nse=5)).blocks
    np.testing.assert_array_equal(dense(block), MATRIX != 0)
    assert block.count == 3


def test_structured_jacobians_in_a_tree():
    def f(x, y):
        return {"a": x[1:] - x[:-1], "b": x[:2] * y}

    x, y = jnp.array([1.0, 2.0, 4.0]), 3.0
    blocks = view.spy(jacobian(f, (0, 1), sparse=True)(x, y)).blocks
    expected = jax.jacrev(f, (0, 1))(x, y)
    assert [b.name for b in blocks] == ["['a'][0]", "['a'][1]", "['b'][0]", "['b'][1]"]
    for block, leaf in zip(blocks, jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(dense(block), np.asarray(leaf).reshape(block.shape) != 0)


@pytest.mark.parametrize("shape", [(200, 1), (130, 130), (1, 121), (500, 7)])
def test_full_blocks_have_no_stripes(shape):
    """Cells that hold fewer rows or columns than others are as full as they are."""
    shapes = view.spy(np.ones(shape)).drawing().shapes[0].shapes
    assert [s.opacity for s in shapes if hasattr(s, "opacity")] == [1.0]


def test_overlapping_terms_are_counted_once():
    block = jacobian(lambda x: jnp.cumsum(x) + jnp.sin(x) + x[::-1], sparse=True)(jnp.arange(4.0))
    (drawn,) = view.spy(block).blocks
    assert drawn.count == len(set(zip(*map(np.ndarray.tolist, block.coordinates()), strict=True)))
    assert drawn.count <= 16


def test_gradients_scalars_and_higher_ranks():
    assert view.spy(np.ones(3)).blocks[0].shape == (1, 3)
    assert view.spy(np.float64(2.0)).blocks[0].shape == (1, 1)
    assert view.spy(np.ones((2, 3, 4)), output_axes=2).blocks[0].shape == (6, 4)
    with pytest.raises(InputError, match="output_axes=1") as caught:
        view.spy({"w": np.ones((2, 3, 4))})
    assert caught.value.code == "ambiguous_axes"


def area(svg):
    """The painted area per opacity, from the paths themselves."""
    found = {}
    for path in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        runs = path.get("d").replace("h-", "H").split("M")[1:]
        sizes = [run.split("h")[1].split("H")[0].split("v") for run in runs]
        found[path.get("fill-opacity")] = sum(float(w) * float(h) for w, h in sizes)
    return found


def test_painted_area_is_the_share_of_entries():
    (painted,) = area(view.spy(np.eye(10)).svg()).values()
    assert painted == pytest.approx(240.0**2 / 10, rel=1e-2)
    (painted,) = area(view.spy(np.ones((5, 7))).svg()).values()
    assert painted == pytest.approx(240.0 * 240.0 * 5 / 7, rel=1e-2)
    assert area(view.spy(np.zeros((5, 7))).svg()) == {}


def test_large_and_thin_and_empty_blocks_are_drawn():
    large = jacobian(lambda x: x[1:] - x[:-1], sparse=True)(jnp.arange(20_000.0))
    pictures = [large, np.ones((1, 5000)), np.zeros((0, 3)), np.zeros((3, 0))]
    text = view.spy(pictures).svg()
    ElementTree.fromstring(text)
    assert len(text) < 40_000
    assert "19999 × 20000, 39998 of" in text


def test_columns_of_a_narrow_jacobian_can_be_told_apart():
    narrow = view.spy(np.eye(300, 7)).drawing()
    assert narrow.width >= 16 + 36
    (panel,) = narrow.shapes
    ground = next(shape for shape in panel.shapes if hasattr(shape, "size"))
    assert ground.size == (36.0, 240.0)

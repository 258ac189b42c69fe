import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule._codec import SparseArray
from chainrule.runtime.jax_recipes import jax_jacobian, jax_sparse_jacobian

pytest.importorskip("asdex")


@jax.jit
def stencil(d):
    x = d["x"]
    padded = jnp.pad(x, 1)
    return {
        "y": (padded[2:] - 2 * x**2 + padded[:-2]) * d["k"],
        "z": {"w": x[:2] * d["m"]},
        "n": jnp.arange(3),
    }


@pytest.fixture
def inputs():
    return {
        "x": np.linspace(-1, 1, 20, dtype=np.float32),
        "k": np.float32(0.0),
        "m": np.ones((2, 2), np.float32),
    }


@pytest.mark.parametrize("given", ["detected", "given"])
def test_same_as_dense(inputs, given):
    inputs["k"] = np.float32(2.0)
    ins, outs = {"x", "m"}, {"y", "z.w", "n"}
    dense = jax_jacobian(stencil, inputs, ins, outs)
    sparsity = "detect"
    if given == "given":
        sparsity = {o: {i: np.asarray(dense[o][i]) != 0 for i in ins} for o in outs if o != "n"}
    found = jax_sparse_jacobian(stencil, inputs, ins, outs, sparsity=sparsity)
    for out in outs:
        for path in ins:
            assert isinstance(found[out][path], SparseArray)
            np.testing.assert_allclose(found[out][path].todense(), dense[out][path], rtol=1e-6)
    assert found["y"]["x"].nnz == 58


def test_pattern_does_not_depend_on_values(inputs):
    # k = 0 makes every entry zero at this point; the pattern has to hold at all points.
    assert jax_sparse_jacobian(stencil, inputs, {"x"}, {"y"})["y"]["x"].nnz == 58


def test_rows_are_shared_where_that_is_cheaper():
    # One output row touches all inputs: columns cannot share a product, rows can.
    arrow = jax.jit(lambda d: {"y": jnp.append(d["x"] ** 2, d["x"].sum())})
    inputs = {"x": np.arange(12, dtype=np.float32)}
    found = jax_sparse_jacobian(arrow, inputs, {"x"}, {"y"})["y"]["x"]
    expected = np.vstack([np.diag(2 * inputs["x"]), np.ones(12)])
    np.testing.assert_allclose(found.todense(), expected)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from chainrule._codec import SparseArray
from chainrule._patterns import Pattern
from chainrule.errors import InputError
from chainrule.runtime import Array, Differentiable, Float64, component
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
)


@st.composite
def masks(draw):
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    density = draw(st.floats(0.0, 1.0))
    seed = draw(st.integers(0, 1000))
    return np.random.default_rng(seed).uniform(size=shape) < density


def pattern_of(mask):
    return Pattern.at(*np.nonzero(mask), mask.shape)


@given(masks())
def test_no_two_columns_of_a_group_share_a_row(mask):
    groups = pattern_of(mask).column_groups
    for group in groups:
        assert mask[:, group].sum(axis=1).max() <= 1
    grouped = sorted(int(column) for group in groups for column in group)
    assert grouped == [int(c) for c in np.flatnonzero(mask.any(axis=0))]
    assert len(groups) >= mask.sum(axis=1).max(initial=0)


@given(masks())
def test_entries_of_columns(mask):
    pattern = pattern_of(mask)
    columns = np.arange(0, mask.shape[1], 2)
    rows, found = pattern.entries_in(columns)
    again = np.zeros_like(mask)
    again[rows, found] = True
    expected = mask.copy()
    expected[:, 1::2] = False
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_band_needs_as_many_groups_as_it_is_wide(width):
    mask = np.abs(np.subtract.outer(np.arange(50), np.arange(50))) <= width // 2
    assert len(pattern_of(mask).column_groups) == width


@given(masks())
def test_known_sparsity_gives_the_same_matrix(mask):
    matrix = np.where(mask, np.random.default_rng(0).normal(size=mask.shape), 0.0)
    calls = []

    def apply(inputs):
        calls.append(1)
        return {"y": matrix @ inputs["x"]}

    inputs = {"x": np.ones(mask.shape[1])}
    block = finite_difference_jacobian(apply, inputs, {"x"}, {"y"}, sparsity=mask)["y"]["x"]
    assert isinstance(block, SparseArray)
    np.testing.assert_allclose(block.todense(), matrix, atol=1e-9)
    # One more where nothing varies: the outputs' shape has to come from somewhere.
    assert len(calls) == max(2 * len(pattern_of(mask).column_groups), 1)


@given(masks())
def test_detected_sparsity_gives_the_same_matrix(mask):
    matrix = np.where(mask, np.random.default_rng(0).normal(size=mask.shape), 0.0)
    arguments = (lambda d: {"y": matrix @ d["x"]}, {"x": np.ones(mask.shape[1])}, {"x"}, {"y"})
    block = finite_difference_jacobian(*arguments, sparsity="detect")["y"]["x"]
    np.testing.assert_allclose(block.todense(), matrix, atol=1e-9)


def tridiagonal(counter):
    def apply(inputs):
        counter.append(1)
        x = inputs["x"]
        y = -2.0 * x**2
        y[1:] += x[:-1]
        y[:-1] += 3.0 * x[1:]
        return {"y": y}

    return apply


def bands(x):
    n = x.size
    return sparse.diags_array(
        [np.ones(n - 1), -4 * x, 3 * np.ones(n - 1)], offsets=[-1, 0, 1]
    ).tocsr()


@pytest.mark.parametrize(("sparsity", "most"), [("known", 6), ("detect", 100)])
def test_a_large_tridiagonal_problem_takes_few_evaluations(sparsity, most):
    x = np.random.default_rng(0).normal(size=10_000)
    calls = []
    block = finite_difference_jacobian(
        tridiagonal(calls), {"x": x}, {"x"}, {"y"},
        sparsity=bands(np.ones_like(x)) if sparsity == "known" else "detect",
    )["y"]["x"]  # fmt: skip
    assert len(calls) <= most
    assert abs(block.to_scipy().tocsr() - bands(x)).max() < 1e-9


def test_sparse_vjp():
    x, u = np.random.default_rng(0).normal(size=(2, 100))
    calls = []
    found = finite_difference_vjp(
        tridiagonal(calls), {"x": x}, {"x"}, {"y"}, {"y": u}, sparsity=bands(np.ones_like(x))
    )
    np.testing.assert_allclose(found["x"], bands(x).T @ u, atol=1e-8)
    assert len(calls) == 6


def test_several_paths_and_shapes():
    def apply(inputs):
        return {"y": inputs["a"] * 2.0, "s": inputs["b"].sum()}

    inputs = {"a": np.ones((2, 2)), "b": np.ones(3)}
    eye = np.eye(4, dtype=bool).reshape(2, 2, 2, 2)
    sparsity = {
        "y": {"a": eye, "b": np.zeros((2, 2, 3), bool)},
        "s": {"a": np.zeros((2, 2), bool), "b": SparseArray.from_dense(np.ones(3, bool))},
    }
    found = finite_difference_jacobian(apply, inputs, {"a", "b"}, {"y", "s"}, sparsity=sparsity)
    np.testing.assert_allclose(found["y"]["a"].todense(), 2.0 * eye, atol=1e-9)
    np.testing.assert_allclose(found["s"]["b"].todense(), np.ones(3), atol=1e-9)
    assert found["s"]["a"].shape == (2, 2)
    assert found["s"]["a"].nnz == 0


def test_block_without_structure():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]])
    inputs = {"a": np.ones(2), "b": np.ones(2)}
    found = finite_difference_jacobian(
        lambda i: {"y": matrix @ i["a"] + 5 * i["b"]},
        inputs,
        {"a", "b"},
        {"y"},
        sparsity={"y": {"a": None, "b": np.eye(2, dtype=bool)}},
    )["y"]
    assert (found["a"].nnz, found["b"].nnz) == (4, 2)
    np.testing.assert_allclose(found["a"].todense(), matrix, atol=1e-9)
    np.testing.assert_allclose(found["b"].todense(), 5 * np.eye(2), atol=1e-9)


BAND = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1


@pytest.mark.parametrize(
    ("declared", "mask"),
    [
        ("diagonal", np.eye(5)),
        ({"lower": 1, "upper": 1}, BAND),
        ({"y": {"x": {"lower": 0, "upper": 4}}}, np.triu(np.ones((5, 5)))),
        ({"y": {"x": "diagonal"}}, np.eye(5)),
        (SparseArray((5, 5), np.argwhere(BAND), np.ones(13)), BAND),
    ],
)
def test_the_forms_of_a_declaration(declared, mask):
    """As `@component(sparsity=...)` takes them; products and differences read them alike."""
    matrix = np.where(mask, np.arange(25.0).reshape(5, 5) + 1, 0.0)

    def jvp(inputs, jvp_inputs, jvp_outputs, tangent_vector):
        return {"y": matrix @ tangent_vector["x"]}

    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return {"x": matrix.T @ cotangent_vector["y"]}

    def apply(inputs):
        return {"y": matrix @ inputs["x"]}

    call = ({"x": np.ones(5)}, {"x"}, {"y"})
    for found in (
        finite_difference_jacobian(apply, *call, sparsity=declared),
        jacobian_from_jvp(jvp, *call, sparsity=declared),
        jacobian_from_vjp(vjp, apply, *call, sparsity=declared),
    ):
        block = found["y"]["x"]
        assert block.nnz == mask.sum()
        np.testing.assert_allclose(block.todense(), matrix, atol=1e-7)


@pytest.mark.parametrize("one_block", [True, False])
@pytest.mark.parametrize("block", ["diagonal", {"lower": 1, "upper": 1}])
def test_a_component_whose_differences_have_a_pattern(block, one_block):
    sparsity = block if one_block else {"result": {"x": block}}

    @component(derivatives={"sparsity": sparsity})
    def square(x: Differentiable[Array[(4,), Float64]]) -> Differentiable[Array[(4,), Float64]]:
        return x**2

    found = square.jacobian({"x": np.arange(4.0)}, ["x"], ["result"])["result"]["x"]
    np.testing.assert_allclose(found.todense(), np.diag([0.0, 2.0, 4.0, 6.0]), atol=1e-6)


@pytest.mark.parametrize(
    "sparsity",
    [
        "detct",
        {"y": {"x": "diag"}},
        {"y": {}},
        {"y": {"x": None}},
        {"y": {"x": np.ones((2, 2), bool)}},
        np.ones((5, 3), bool),
    ],
)
def test_patterns_that_do_not_fit(sparsity):
    with pytest.raises(InputError) as caught:
        finite_difference_jacobian(
            lambda d: {"y": d["x"]}, {"x": np.ones(3)}, {"x"}, {"y"}, sparsity=sparsity
        )
    assert caught.value.code == "bad_sparsity"


def test_detection_of_a_program_with_noise_is_conservative():
    generator = np.random.default_rng(0)

    def apply(inputs):
        return {"y": inputs["x"] + 1e-12 * generator.normal(size=4)}

    block = finite_difference_jacobian(apply, {"x": np.ones(4)}, {"x"}, {"y"}, sparsity="detect")[
        "y"
    ]["x"]
    np.testing.assert_allclose(block.todense(), np.eye(4), atol=1e-6)

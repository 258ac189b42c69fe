import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule._codec import SparseArray
from chainrule.errors import ComponentError, InputError
from chainrule.runtime.derivatives import (
    batched_product,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    value_and_vjp,
    vjp_from_jacobian,
)


def sparse_jacobian(problem):
    def jacobian(*arguments):
        blocks = problem.jacobian(*arguments)
        return {
            o: {i: SparseArray.from_dense(b) for i, b in row.items()} for o, row in blocks.items()
        }

    return jacobian


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, atol=1e-13)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_products_from_the_jacobian(problem, tangent, cotangent, is_sparse):
    jacobian = sparse_jacobian(problem) if is_sparse else problem.jacobian
    paths = (problem.input_paths, problem.output_paths)
    assert_close(
        jvp_from_jacobian(jacobian, problem.inputs, *paths, tangent), problem.push(tangent)
    )
    assert_close(
        vjp_from_jacobian(jacobian, problem.inputs, *paths, cotangent), problem.pull(cotangent)
    )


@pytest.mark.parametrize("is_sparse", [False, True])
def test_batches_of_vectors(problem, tangent, cotangent, is_sparse):
    jacobian = sparse_jacobian(problem) if is_sparse else problem.jacobian
    paths = (problem.input_paths, problem.output_paths)
    scales = np.array([1.0, -2.0, 0.5])
    for product, vector, single in (
        (jvp_from_jacobian, tangent, problem.push(tangent)),
        (vjp_from_jacobian, cotangent, problem.pull(cotangent)),
    ):
        batch = {p: np.multiply.outer(scales, v) for p, v in vector.items()}
        expected = {p: np.multiply.outer(scales, v) for p, v in single.items()}
        found = product(jacobian, problem.inputs, *paths, batch, batched=True)
        assert_close(found, expected)

        def loop(inputs, input_paths, output_paths, one, product=product):
            return product(jacobian, inputs, input_paths, output_paths, one)

        assert_close(batched_product(loop, problem.inputs, *paths, batch), expected)


def test_component_that_batches_is_called_once(problem, tangent):
    calls = []

    def jvp(inputs, jvp_inputs, jvp_outputs, vector, *, batched):
        calls.append(batched)
        return jvp_from_jacobian(
            problem.jacobian, inputs, jvp_inputs, jvp_outputs, vector, batched=batched
        )

    batch = {p: np.stack([v, v]) for p, v in tangent.items()}
    paths = (problem.input_paths, problem.output_paths)
    batched_product(jvp, problem.inputs, *paths, batch, can_batch=True)
    assert calls == [True]


@pytest.mark.parametrize("batch", [{"x": np.ones(4), "b": np.ones((3, 1))}, {"x": np.float64(1)}])
def test_batches_must_agree(batch):
    with pytest.raises(InputError) as caught:
        batched_product(lambda *_: {}, {}, set(batch), {"y"}, batch)
    assert caught.value.code == "batch_mismatch"


@pytest.mark.parametrize("batched", [False, True])
def test_jacobian_from_products(problem, batched):
    calls = []

    def jvp(inputs, jvp_inputs, jvp_outputs, vector, batched=False):
        calls.append("jvp")
        return jvp_from_jacobian(
            problem.jacobian, inputs, jvp_inputs, jvp_outputs, vector, batched=batched
        )

    def vjp(inputs, vjp_inputs, vjp_outputs, vector, batched=False):
        calls.append("vjp")
        return vjp_from_jacobian(
            problem.jacobian, inputs, vjp_inputs, vjp_outputs, vector, batched=batched
        )

    paths = (problem.input_paths, problem.output_paths)
    forward = jacobian_from_jvp(jvp, problem.inputs, *paths, batched=batched)
    reverse = jacobian_from_vjp(vjp, problem.apply, problem.inputs, *paths, batched=batched)
    for found in (forward, reverse):
        for out, row in problem.reference.items():
            assert_close(found[out], row)
    assert calls.count("jvp") == (1 if batched else 6)
    assert calls.count("vjp") == (1 if batched else 4)


def test_shapes_from_abstract_evaluation(problem):
    def abstract(inputs):
        return {
            "y": {"shape": [3], "dtype": "float64"},
            "n": {"s": {"shape": [], "dtype": "float64"}},
        }

    def vjp(inputs, vjp_inputs, vjp_outputs, vector):
        return vjp_from_jacobian(problem.jacobian, inputs, vjp_inputs, vjp_outputs, vector)

    paths = (problem.input_paths, problem.output_paths)
    found = jacobian_from_vjp(vjp, abstract, problem.inputs, *paths)
    for out, row in problem.reference.items():
        assert_close(found[out], row)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_known_sparsity_shares_products(direction):
    n = 30
    matrix = np.diag(np.arange(1.0, n + 1)) + np.diag(np.ones(n - 1), 1)
    calls = []

    def jvp(inputs, jvp_inputs, jvp_outputs, vector):
        calls.append(1)
        return {"y": matrix @ vector["x"]}

    def vjp(inputs, vjp_inputs, vjp_outputs, vector):
        calls.append(1)
        return {"x": vector["y"] @ matrix}

    arguments = ({"x": np.ones(n)}, {"x"}, {"y"})
    if direction == "forward":
        found = jacobian_from_jvp(jvp, *arguments, sparsity=matrix != 0)
    else:
        found = jacobian_from_vjp(vjp, lambda d: {"y": d["x"]}, *arguments, sparsity=matrix != 0)
    assert len(calls) == 2
    np.testing.assert_array_equal(found["y"]["x"].todense(), matrix)


def test_unit_vectors_have_the_dtype_of_what_they_belong_to():
    seen = []

    def jvp(inputs, jvp_inputs, jvp_outputs, vector):
        seen.append(vector["x"].dtype)
        return {"y": vector["x"]}

    jacobian_from_jvp(jvp, {"x": np.ones(2, np.float32)}, {"x"}, {"y"})
    assert set(seen) == {np.dtype("float32")}


def test_no_elements_still_has_shapes():
    found = jacobian_from_jvp(lambda *_: {"y": np.zeros(3)}, {"x": np.zeros((0, 2))}, {"x"}, {"y"})
    assert found["y"]["x"].shape == (3, 0, 2)


def test_vector_keys_are_checked(problem):
    with pytest.raises(InputError) as caught:
        jvp_from_jacobian(problem.jacobian, problem.inputs, {"x"}, {"y"}, {"a.b": 1.0})
    assert caught.value.code == "vector_keys_mismatch"


def test_value_and_gradient(problem, cotangent):
    def vjp(*arguments):
        return vjp_from_jacobian(problem.jacobian, *arguments)

    paths = (problem.input_paths, problem.output_paths)
    outputs, gradient = value_and_vjp(problem.apply, vjp, problem.inputs, *paths, cotangent)
    np.testing.assert_array_equal(outputs["y"], problem.apply(problem.inputs)["y"])
    assert_close(gradient, problem.pull(cotangent))


@given(
    st.lists(st.integers(1, 3), max_size=2), st.lists(st.integers(1, 3), max_size=2), st.booleans()
)
def test_products_are_adjoint(out_shape, in_shape, is_sparse):
    generator = np.random.default_rng(0)
    block = generator.normal(size=(*out_shape, *in_shape))
    u, v = generator.normal(size=out_shape), generator.normal(size=in_shape)
    blocks = {"y": {"x": SparseArray.from_dense(block) if is_sparse else block}}
    point = (lambda *_: blocks, {"x": v}, {"x"}, {"y"})
    pushed = jvp_from_jacobian(*point, {"x": v})["y"]
    pulled = vjp_from_jacobian(*point, {"y": u})["x"]
    assert pushed.shape == tuple(out_shape)
    assert pulled.shape == tuple(in_shape)
    np.testing.assert_allclose(np.sum(u * pushed), np.sum(pulled * v), atol=1e-12)


INPUTS = {"x": np.ones((2, 2)), "a": np.float64(1.0)}
BLOCKS = {"y": {"x": np.arange(12.0).reshape(3, 2, 2), "a": np.ones(3)}}


def test_a_vector_that_fits_no_block_is_the_callers_mistake():
    for derive, vector in [
        (jvp_from_jacobian, {"x": np.ones(3)}),
        (jvp_from_jacobian, {"x": np.ones((1, 2))}),
        (jvp_from_jacobian, {"x": 2.0}),
        (vjp_from_jacobian, {"y": np.ones(2)}),
        (vjp_from_jacobian, {"y": np.ones(1)}),
    ]:
        with pytest.raises(InputError, match="has shape") as caught:
            derive(lambda *_: BLOCKS, INPUTS, {"x"}, {"y"}, vector)
        assert caught.value.code == "vector_shape_mismatch"


@pytest.mark.parametrize("result", [None, {}, {"y": None}, {"y": {"a": np.ones(3)}}])
def test_an_endpoint_that_leaves_something_out_is_named(result):
    with pytest.raises(ComponentError, match="Expected an entry for") as caught:
        jvp_from_jacobian(lambda *_: result, INPUTS, {"x"}, {"y"}, {"x": 1.0})
    assert caught.value.code == "bad_output"
    if result in (None, {}):
        with pytest.raises(ComponentError, match="Expected an entry for 'y'"):
            jacobian_from_jvp(lambda *_: result, INPUTS, {"x"}, {"y"})

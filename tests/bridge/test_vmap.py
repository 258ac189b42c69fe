"""How batches reach a component: natively when it says so, else one call per example."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import apply_component, component_errors, from_callable
from chainrule.errors import CapabilityError, ComponentError, InputError
from chainrule.runtime import Array, Differentiable, Float64, component

X = np.arange(12.0).reshape(4, 3) / 7


def recording(function, **options):
    """A callable that writes down the shapes it sees."""
    seen = []

    def f(x):
        seen.append(x.shape)
        return function(x)

    def vjp(primals, u):
        seen.append(primals[0].shape)
        return (np.cos(primals[0]) * u,)

    return from_callable(f, vjp=vjp, abstract=lambda x: x, **options), seen


@pytest.mark.parametrize("batching", ["elementwise", "leading"])
def test_a_declared_batch_is_one_call(batching):
    f, seen = recording(np.sin, batching=batching)
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(X), np.sin(X))
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: f(x).sum()))(X), np.cos(X))
    assert set(seen) == {(4, 3)}


def test_elementwise_takes_any_number_of_axes_and_leading_takes_one():
    f, seen = recording(np.sin, batching="elementwise")
    np.testing.assert_allclose(jax.vmap(jax.vmap(f))(X[None]), np.sin(X)[None])
    assert seen == [(1, 4, 3)]
    f, seen = recording(np.sin, batching="leading")
    np.testing.assert_allclose(jax.vmap(jax.vmap(f))(np.stack([X, X])), np.sin([X, X]))
    assert seen == [(4, 3), (4, 3)]


def test_nothing_is_guessed_from_ranks():
    """A sum accepts one more axis and would give something else."""
    f = from_callable(lambda x: x / x.sum(), abstract=lambda x: x)
    wanted = X[1:] / X[1:].sum(1, keepdims=True)
    np.testing.assert_allclose(jax.vmap(f)(X[1:]), wanted)


def test_elementwise_with_different_ranks_is_not_batched_natively():
    """NumPy would align the batch axis of the scalar with the wrong axis of the vector."""
    f = from_callable(lambda x, a: a * x, abstract=lambda x, a: x, batching="elementwise")
    a = np.arange(3.0)
    np.testing.assert_allclose(jax.vmap(f)(X[:3], a), a[:, None] * X[:3])


def test_a_wrong_declaration_is_found_by_the_spot_check():
    @component(batching="leading")
    def normalized(x: Differentiable[Array[..., Float64]]) -> Differentiable[Array[..., Float64]]:
        return x / x.sum()

    def f(x, **options):
        return apply_component(normalized, {"x": x}, infer_by_evaluation=True, **options)["result"]

    with pytest.raises(ComponentError, match="first example") as caught:
        jax.vmap(lambda x: f(x, spot_check=True))(X[1:])
    assert caught.value.code == "batching_mismatch"
    fine = jax.vmap(lambda x: f(x, spot_check=True, vmap_method="concurrent"))(X[1:])
    np.testing.assert_allclose(fine, X[1:] / X[1:].sum(1, keepdims=True))


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_the_caller_can_declare_batching(method):
    shapes = []

    def product(x, w):
        shapes.append((x.shape, w.shape))
        return x * w

    f = from_callable(product, abstract=lambda x, w: x, vmap_method=method)
    np.testing.assert_allclose(jax.vmap(f, (0, None))(X, X[0]), X * X[0])
    assert shapes == [((4, 3), (1 if method == "expand_dims" else 4, 3))]


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_derivatives_by_an_operand_without_batch_axis(method):
    """The endpoints treat leading axes as batch axes: they do not sum over them."""
    f = from_callable(
        lambda x, w: x * w,
        vjp=lambda p, u: (p[1] * u, p[0] * u),
        abstract=lambda x, w: x,
        vmap_method=method,
    )

    def gradients(f):
        one = jax.grad(lambda x, w: (jax.vmap(f, (0, None))(x, w) ** 2).sum(), (0, 1))(X, X[0])
        twice = jax.vmap(jax.vmap(f, (0, None)), (None, 0))
        return one, jax.jit(jax.grad(lambda x, w: (twice(x, w) ** 2).sum(), (0, 1)))(X, X[:2])

    wanted = gradients(lambda x, w: x * w)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v), gradients(f), wanted)


def test_a_schema_of_fixed_rank_falls_back_to_single_calls():
    @component
    def double(x: Differentiable[Array[("n",), Float64]]) -> Differentiable[Array[("n",), Float64]]:
        return 2 * x

    f = lambda x: apply_component(double, {"x": x}, vmap_method="expand_dims")["result"]  # noqa: E731
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(X), 2 * X)


def test_unknown_and_forbidden_methods():
    f, _ = recording(np.sin, vmap_method=None)
    with pytest.raises(CapabilityError, match="vmap_method=None"):
        jax.vmap(f)(X)
    with pytest.raises(InputError, match="expand_dims"):
        recording(np.sin, vmap_method="guess")


def test_examples_run_concurrently_up_to_the_bound_and_stay_in_order():
    inside, most, lock = 0, 0, threading.Lock()
    first_three, finished = threading.Barrier(3), [threading.Event() for _ in range(4)]

    def slow(x):
        nonlocal inside, most
        number = int(x[0])
        with lock:
            inside += 1
            most = max(most, inside)
        if number < 3:
            first_three.wait(60)
        if number < 2:  # later examples finish first
            assert finished[number + 1].wait(60)
        with lock:
            inside -= 1
        finished[number].set()
        return x

    f = from_callable(slow, abstract=lambda x: x, max_concurrency=3)
    x = np.arange(4.0)[:, None]
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(x), x)
    assert most == 3


def test_sequential_is_one_at_a_time():
    threads = set()

    def f(x):
        threads.add(threading.get_ident())
        return x

    g = from_callable(f, abstract=lambda x: x, max_concurrency=4, vmap_method="sequential")
    jax.vmap(g)(X)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("max_concurrency", [1, 3])
def test_errors_carry_the_batch_index(max_concurrency):
    def f(x):
        if x[0] > 1:
            raise ArithmeticError("too large")
        return x

    g = from_callable(f, abstract=lambda x: x, max_concurrency=max_concurrency)
    with pytest.raises(ArithmeticError, match="too large") as caught, component_errors():
        jax.block_until_ready(jax.jit(jax.vmap(g))(np.array([[0.0], [1.0], [2.0], [3.0]])))
    assert caught.value.__notes__[0] == "This happened at batch index (2,)."


@pytest.mark.parametrize(
    "option",
    [
        {"batching": "rows"},
        {"max_concurrency": 0},
        {"max_concurrency": True},
        {"abstract": "guess"},
    ],
    ids=str,
)
def test_options_are_checked(option):
    with pytest.raises(InputError) as caught:
        from_callable(np.sin, **option)
    assert (caught.value.code, caught.value.path) == ("invalid_option", *option)


@pytest.mark.parametrize("batching", [None, "elementwise", "leading"])
def test_empty_batch(batching):
    f, seen = recording(np.sin, batching=batching)
    assert jax.vmap(f)(jnp.zeros((0, 3))).shape == (0, 3)
    assert seen == []

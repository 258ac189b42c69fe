"""Complex results, and values that are no real numbers on the way: integers, random keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import ChainruleError
from chainrule.elimination import jacobian, jacve, value_and_jacobian

V = np.array([0.3, -0.7, 1.2, 0.5])
KEY = jax.random.key(3)


def waves(x):
    """Complex results of several shapes, a real one, a constant one and an empty one."""
    return {
        "a": jnp.exp(1j * x) * x[::-1],
        "b": ((x[:2] + 2j) * (1 - x[2:] * 1j)).reshape(2, 1),
        "c": x.sum(),
        "d": jnp.array([1j]),
        "e": jnp.zeros((0, 2), complex),
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"order": "forward"},
        {"order": "reverse"},
        {"sparse": True},
        {"method": "jacrev"},
        {"method": "jacfwd"},
        {"method": "compressed"},
        {"backend": "native"},
    ],
    ids=str,
)
def test_results_may_be_complex(settings):
    found = jacobian(waves, **settings)(V)
    if "sparse" in settings:
        assert found["a"].nse == 8
        np.testing.assert_allclose(found["a"].to_scipy() @ V, found["a"] @ V)
        found = {name: block.todense() for name, block in found.items()}
    reference = jax.jacfwd(waves)(V)
    for name, wanted in reference.items():
        if name in "abc":
            assert found[name].dtype == wanted.dtype
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=1e-12, atol=1e-12, err_msg=name)


def test_complex_results_in_single_precision_and_in_a_batch():
    def turned(x):
        return jnp.exp(1j * x) * x[0]

    batch = np.float32([V, V + 1])
    found = jax.vmap(jacobian(turned, order="reverse"))(batch)
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, jax.vmap(jax.jacfwd(turned))(batch), rtol=1e-5)


@pytest.mark.parametrize("method", ["elimination", "jacrev", "jacfwd"])
def test_complex_results_where_promotion_is_strict(method):
    with jax.numpy_dtype_promotion("strict"):
        found = jacobian(jnp.fft.fft, method=method)(V)
    np.testing.assert_allclose(found, jax.jacfwd(jnp.fft.fft)(V), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", "native", "xla"])
def test_random_keys_and_integers_stay_what_they_are(backend):
    def noisy(x, key):
        scale = jax.random.normal(KEY, (4,)) * jax.random.normal(key, (4,))
        return x * scale, jnp.arange(3, dtype=jnp.int8), jnp.array(2**60 + 1), jnp.array(True)

    result, found = jax.jit(value_and_jacobian(noisy, backend=backend))(V, KEY)
    wanted = noisy(V, KEY)
    for ours, theirs in zip(result, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-15)
    np.testing.assert_allclose(found[0], jnp.diag(wanted[0] / V), rtol=1e-12)
    for block, shape in zip(found[1:], [(3, 4), (4,), (4,)], strict=True):
        np.testing.assert_array_equal(block, np.zeros(shape))


def test_constants_of_a_kernel_may_have_any_dtype():
    """No key comes from outside here, so everything but the product is known when the kernel is made."""

    def noisy(x):
        return x * jax.random.normal(KEY, (4,)), np.int8([1, 2])

    (result, constant), (found, _) = jax.jit(value_and_jacobian(noisy, backend="native"))(V)
    np.testing.assert_array_equal(constant, [1, 2])
    np.testing.assert_allclose(result, noisy(V)[0], rtol=1e-15)
    np.testing.assert_allclose(found, jnp.diag(jax.random.normal(KEY, (4,))), rtol=1e-15)


def test_a_primitive_without_a_batching_rule():
    def function(x):
        doubled = jax.custom_derivatives.linear_call(
            lambda _, y: 2 * y, lambda _, c: 2 * c, (), jnp.sin(x)
        )
        return doubled * x

    for order in ("forward", "reverse"):
        (found,) = jacve(function, order)(V)
        np.testing.assert_allclose(found, np.diag(2 * np.sin(V) + 2 * V * np.cos(V)), rtol=1e-12)


@pytest.mark.parametrize(
    ("argument", "remedy"), [(V * 1j, "real and the imaginary part"), (np.arange(3), "to a float")]
)
def test_what_is_no_real_array_is_refused(argument, remedy):
    with pytest.raises(ChainruleError, match=remedy) as caught:
        jacobian(jnp.abs)(argument)
    assert caught.value.code == "not_differentiable"


PLACED = {
    "add": lambda x: x.at[0].add(x[1]),
    "set": lambda x: x.at[1:3].set(2 * x[1]),
    "segment_sum": lambda x: jax.ops.segment_sum(x * x, np.array([0, 0, 1, 1]), num_segments=2),
    "update_slice": lambda x: jax.lax.dynamic_update_slice(x, x[:2] * x[2:], (1,)),
    "gradient of a gather": jax.grad(lambda x: (x[np.array([0, 2, 2])] ** 3).sum()),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", PLACED)
def test_static_scatters_in_every_precision(name, dtype):
    function, x = PLACED[name], jnp.arange(1.0, 5.0).astype(dtype)
    for is_double in (True, False):
        if dtype == "float64" and not is_double:
            continue
        with jax.enable_x64(is_double):
            expected = jax.jacrev(function)(x)
            for settings in ({}, {"method": "elimination"}):
                found = jacobian(function, **settings)(x)
                assert found.dtype == expected.dtype == x.dtype
                np.testing.assert_array_equal(found.astype(float), expected.astype(float))


def test_places_beyond_what_a_short_float_can_count():
    """bfloat16 has no number between 256 and 258."""
    x = jnp.ones(300, jnp.bfloat16)
    block = jacobian(lambda x: jnp.zeros_like(x).at[np.arange(300)[::-1]].add(x), sparse=True)(x)
    np.testing.assert_array_equal(block.todense().astype(float), np.eye(300)[::-1])


@pytest.mark.parametrize("method", ["auto", "elimination", "jacrev", "jacfwd", "compressed"])
def test_the_dtype_of_a_jacobian_is_that_of_the_input(method):
    """As in `jax.jacrev`, in any dtype that the function computes in."""
    x = jnp.arange(1.0, 4.0, dtype=jnp.float32)

    def function(x):
        wide = x.astype(jnp.float64) ** 2
        return {"wide": wide[:2], "narrow": wide.astype(jnp.float16), "complex": wide * 1j}

    found = jacobian(function, method=method)(x)
    assert {name: block.dtype.name for name, block in found.items()} == {
        "wide": "float32", "narrow": "float32", "complex": "complex64"
    }  # fmt: skip
    np.testing.assert_allclose(found["wide"], np.diag([2.0, 4.0, 6.0])[:2])
    np.testing.assert_allclose(found["complex"], np.diag([2.0, 4.0, 6.0]) * 1j)


def test_long_chains_of_constants():
    """Longer than Python's stack: what an index is worth is found out without recursion."""

    def function(x):
        index = jnp.array(0.0)
        for _ in range(1200):
            index = jnp.sin(index)
        return x.at[index.astype(int)].add(x[1]) * x

    x = np.array([1.0, 2.0, 3.0])
    for settings in ({}, {"method": "elimination"}):
        found = jacobian(function, **settings)(x)
        np.testing.assert_allclose(found, jax.jacrev(function)(x))

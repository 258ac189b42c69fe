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


def test_a_pattern_that_cannot_be_read():
    pytest.importorskip("asdex")
    with pytest.raises(ChainruleError, match="fft") as caught:
        jacobian(lambda x: jnp.fft.fft(x).real, method="compressed")(V)
    assert caught.value.code == "no_pattern"

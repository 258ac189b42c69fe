"""`intermediate_stats` against NumPy on the captured arrays."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.harvest import intermediate_stats, save_intermediates, sow


def f(x):
    def body(c, t):
        c = sow({"v": jnp.sin(c) * t, "z": c + 1j, "n": jnp.arange(3), "s": "text"}, "c")["v"]
        return c, None

    end = jax.lax.scan(body, x, jnp.array([1.0, 2.0, 3.0]))[0]
    return jnp.sum(sow(end, "end"))


def test_summaries_of_all_iterations():
    x = jnp.array([0.3, -1.2])
    result, stats = intermediate_stats(jax.grad(f))(x)
    expected, found = save_intermediates(jax.grad(f))(x)
    np.testing.assert_allclose(result, expected)
    for name, mode, leaf in (("c", "primal", "v"), ("c", "cotangent", "v"), ("c", "primal", "n")):
        got, array = stats[name][mode][leaf], np.asarray(found[name][mode][leaf])
        np.testing.assert_allclose(got.norm, np.linalg.norm(array), rtol=1e-5)
        np.testing.assert_allclose([got.min, got.max], [array.min(), array.max()], rtol=1e-5)
        assert (got.shape, got.dtype, got.nonfinite) == (array.shape[1:], array.dtype, 0)
    modulus = np.abs(found["c"]["primal"]["z"])
    np.testing.assert_allclose(stats["c"]["primal"]["z"].max, modulus.max(), rtol=1e-5)
    assert stats["c"]["primal"]["s"] == "text"
    assert stats["c"]["cotangent"]["n"] is None
    np.testing.assert_allclose(stats["end"]["cotangent"].norm, np.sqrt(2), rtol=1e-6)


def test_counts_nan_and_inf_and_keeps_no_arrays():
    _, stats = intermediate_stats(lambda x: sow(jnp.log(x), "h"))(jnp.array([1.0, 0.0, -1.0]))
    assert stats["h"]["primal"].nonfinite == 2
    assert all(leaf.ndim == 0 for leaf in jax.tree.leaves(stats))


def test_keys_have_no_numbers():
    _, stats = intermediate_stats(lambda key: sow((key, 1.0), "h"))(jax.random.key(0))
    key, number = stats["h"]["primal"]
    assert key is None
    assert number.norm == 1.0

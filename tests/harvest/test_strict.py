"""Captures work in double precision, and where JAX promotes nothing by itself."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.harvest import grad_wrt, intermediate_stats, plant, save_intermediates, sow


@contextlib.contextmanager
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def f(x):
    def body(c, t):
        c = sow(jnp.sin(c) * t, "c")
        sow(jnp.int32(2), "n")
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 0.1, lambda c: sow(c + 0.1, "w"), c), None

    return jnp.sum(jax.lax.scan(body, x, jnp.ones(3, x.dtype))[0])


@pytest.mark.parametrize(
    ("context", "dtype"), [(strict, "float32"), (lambda: jax.enable_x64(True), "float64")]
)
@pytest.mark.parametrize("reduce", ["stack", "last", "sum", "mean", "max"])
def test_reductions(context, dtype, reduce):
    with context():
        x = jnp.array([0.3, 0.4], dtype)
        _, found = save_intermediates(f, reduce=reduce, buffer=2)(x)
        assert found["c"]["primal"].dtype == dtype
        assert found["w"]["primal"].dtype == dtype
        mean_of_integers = found["n"]["primal"]
        np.testing.assert_array_equal(mean_of_integers, {"stack": [2] * 3, "sum": 6}.get(reduce, 2))


@pytest.mark.parametrize("context", [strict, lambda: jax.enable_x64(True)], ids=["strict", "x64"])
def test_the_rest(context):
    def g(x):
        return jnp.sum(jax.lax.map(lambda x: sow(x * x, "h"), x))

    with context():
        x = jnp.array([0.3, 0.4])
        assert grad_wrt(g, "h")(x)["h"].dtype == x.dtype
        np.testing.assert_allclose(plant(g, {"h": jnp.array([1.0, 2.0])})(x), 3.0)
        _, stats = intermediate_stats(jax.grad(g))(x)
        np.testing.assert_allclose(stats["h"]["cotangent"].norm, np.sqrt(2), rtol=1e-6)

"""`fence`: the identity for every transformation, and a border for XLA's fusion."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule._jaxpr import fence

N = 12


def steps(x, border):
    """Sines of sines, all of which are results."""
    results = []
    for _ in range(N):
        (x,) = border([jnp.sin(x)])
        results.append(x)
    return results


def number_of_sines(border):
    text = jax.jit(lambda x: steps(x, border)).lower(jnp.ones(8)).compile().as_text()
    return text.count(" sine(")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only there it is a border")
def test_every_step_is_computed_once():
    assert number_of_sines(fence) == N
    # If XLA learns this by itself, the fence can go.
    assert number_of_sines(list) > N


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        jax.jit,
        jax.vmap,
        jax.checkpoint,
        lambda f: jax.jit(jax.grad(lambda x: jnp.sum(f(x)))),
        lambda f: lambda x: jax.jvp(f, (x,), (2 * x,)),
        lambda f: jax.hessian(lambda x: jnp.sum(f(x))),
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), c), x, None, length=2),
    ],
    ids=["plain", "jit", "vmap", "checkpoint", "grad", "jvp", "hessian", "scan"],
)
def test_is_the_identity(transform):
    def f(x, border):
        a, b = border([jnp.sin(x), x**2])
        return a * b

    x = jnp.array([0.3, 0.7])
    results = [transform(lambda x, b=b: f(x, b))(x) for b in (fence, list)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *results)


def test_any_value():
    key = jax.random.key(0)

    @jax.jit
    def f(key, n, flag, half):
        return fence([key, n, flag, half, jnp.zeros((0, 3))])

    k, n, flag, half, empty = f(key, 3, True, jnp.bfloat16(0.5))
    assert (n, flag, half, empty.shape) == (3, True, 0.5, (0, 3))
    np.testing.assert_array_equal(jax.random.key_data(k), jax.random.key_data(key))
    assert fence([]) == []


def test_can_be_exported_for_other_platforms():
    exported = jax.export.export(jax.jit(lambda x: fence([x * 2])[0]), platforms=["cpu", "tpu"])(
        jnp.ones(2)
    )
    np.testing.assert_array_equal(exported.call(jnp.ones(2)), [2.0, 2.0])

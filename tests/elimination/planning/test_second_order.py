"""Hessians and Gauss-Newton products of pipelines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule
from chainrule.elimination import gauss_newton_product, hessian

X = np.linspace(0.1, 1.0, 6)


def test_hessians_of_scalar_pipelines(counted):
    a, b = counted.component("a", 6, 2, hvp=True), counted.component("b", 2, 4, hvp=True)

    def f(x):
        return jnp.sum(b(jnp.tanh(a(x))) ** 2)

    expected = jax.jacfwd(jax.grad(f))(X)
    by_jax = jax.jacfwd(jax.grad(f))
    counted.asked.clear()
    by_jax(X)
    needed_by_jax = counted.products
    counted.asked.clear()
    found = hessian(f)(X)
    assert counted.products < 0.7 * needed_by_jax
    assert counted.asked["a", "apply"] == counted.asked["b", "apply"] == 1
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jax.jit(hessian(f))(X), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(hessian(f, order="forward")(X), expected, rtol=1e-9, atol=1e-12)


def test_a_component_without_second_derivatives_is_named(counted):
    a = counted.component("flat", 6, 2)
    with pytest.raises(
        chainrule.ChainruleError, match=r"flat cannot answer .*hessian_vector_product"
    ):
        hessian(lambda x: jnp.sum(a(x)))(X)


def test_gauss_newton_products(counted):
    a, b = counted.component("a", 6, 2), counted.component("b", 2, 4)

    def f(x, scale):
        return {"y": b(a(x)) * scale["s"], "x": x[:2], "count": jnp.arange(3)}

    args = X, {"s": jnp.asarray(2.0)}
    j = jax.jacfwd(lambda x: jnp.concatenate([b(a(x)) * 2.0, x[:2]]))(X)
    v = np.cos(X)
    counted.asked.clear()
    value, product = gauss_newton_product(f)(*args)
    assert counted.asked == {("a", "apply"): 1, ("b", "apply"): 1}
    np.testing.assert_allclose(product(v), j.T @ (j @ v), rtol=1e-10)
    assert counted.products == 4
    jax.tree.map(np.testing.assert_allclose, value, f(*args))
    both = gauss_newton_product(f, argnums=(0, 1))(*args)[1]
    moved = both((v, {"s": jnp.asarray(0.0)}))
    np.testing.assert_allclose(moved[0], j.T @ (j @ v), rtol=1e-10)
    compiled = jax.jit(lambda x, v: gauss_newton_product(f)(x, args[1])[1](v))
    np.testing.assert_allclose(compiled(X, v), j.T @ (j @ v), rtol=1e-10)

"""`vmap`: the batch axis comes first, wherever the data flow moved it."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.harvest import save_intermediates, sow

XS = jnp.arange(6.0).reshape(2, 3)


def test_any_in_axes_and_out_axes():
    def f(x):
        return sow(x * 2, "h")

    _, found = save_intermediates(jax.vmap(f, in_axes=1, out_axes=1))(XS)
    np.testing.assert_array_equal(found["h"]["primal"], 2 * XS.T)
    _, found = save_intermediates(jax.vmap(jax.vmap(f), in_axes=1))(XS)
    np.testing.assert_array_equal(found["h"]["primal"], 2 * XS.T)


def test_values_that_do_not_depend_on_the_batch_are_repeated():
    def f(w, x):
        shared = sow(w * 2, "shared")
        both = sow({"w": w, "x": x}, "both")
        return jnp.sum(shared * both["x"])

    for wrap in (lambda f: f, jax.jit):
        result, found = save_intermediates(jax.vmap(wrap(f), in_axes=(None, 0)))(3.0, XS)
        np.testing.assert_array_equal(result, 6 * XS.sum(1))
        np.testing.assert_array_equal(found["shared"]["primal"], [6.0, 6.0])
        np.testing.assert_array_equal(found["both"]["primal"]["w"], [3.0, 3.0])
    # An axis that is not mapped out stays unmapped.
    jax.vmap(lambda x: sow(2.0, "c"), out_axes=None)(XS)
    captured = save_intermediates(jax.vmap(lambda x: sow(2.0, "c"), out_axes=None))
    result, found = captured(XS)
    assert result == 2.0
    np.testing.assert_array_equal(found["c"]["primal"], [2.0, 2.0])


def test_gradients_per_example():
    def loss(w, x):
        h = sow(x @ w, "h")
        scale = sow(2.0 * w.sum(), "scale")
        return scale * h**2

    w = jnp.array([1.0, -1.0, 2.0])
    grads, found = save_intermediates(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(w, XS)
    h, scale = XS @ w, 2 * w.sum()
    np.testing.assert_allclose(found["h"]["primal"], h)
    np.testing.assert_allclose(found["h"]["cotangent"], 2 * scale * h)
    np.testing.assert_allclose(found["scale"]["primal"], [scale] * 2)
    np.testing.assert_allclose(found["scale"]["cotangent"], h**2)
    np.testing.assert_allclose(grads, jax.vmap(jax.grad(loss), in_axes=(None, 0))(w, XS))


def test_gradient_of_a_batch():
    def loss(w):
        return jnp.sum(jax.vmap(lambda x: sow(x @ w, "h") ** 2)(XS))

    w = jnp.array([1.0, -1.0, 2.0])
    _, found = save_intermediates(jax.grad(loss))(w)
    np.testing.assert_allclose(found["h"]["cotangent"], 2 * XS @ w)


def test_loops_come_before_the_batch():
    def f(x):
        return jax.lax.scan(lambda c, _: (sow(c * 2, "c"), None), x, None, length=2)[0]

    expected = np.stack([2 * XS[0], 4 * XS[0]])
    _, found = save_intermediates(jax.vmap(f))(XS[0])
    np.testing.assert_array_equal(found["c"]["primal"], expected)
    _, found = save_intermediates(lambda xs: jax.lax.scan(
        lambda c, _: (jax.vmap(lambda c: sow(c * 2, "c"))(c), None), xs, None, length=2
    ))(XS[0])  # fmt: skip
    np.testing.assert_array_equal(found["c"]["primal"], expected)


def test_examples_of_a_while_loop_stop_by_themselves():
    def f(x):
        return jax.lax.while_loop(lambda c: sow(c, "asked") < 10, lambda c: sow(c * 2, "w"), x)

    captured = save_intermediates(jax.vmap(f))
    xs = jnp.array([1.0, 4.0, 20.0])
    result, found = captured(xs)
    np.testing.assert_array_equal(result, [16.0, 16.0, 20.0])
    np.testing.assert_array_equal(found["w"]["primal"], [16.0, 16.0, 0.0])
    np.testing.assert_array_equal(found["w"]["count"], [4, 2, 0])
    np.testing.assert_array_equal(found["w"]["taken"], [True, True, False])
    np.testing.assert_array_equal(found["asked"]["primal"], [16.0, 16.0, 20.0])
    np.testing.assert_array_equal(found["asked"]["count"], [5, 3, 1])

    def plain(x):
        return jax.lax.while_loop(lambda c: c < 10, lambda c: sow(c * 2, "w"), x)

    _, found = save_intermediates(jax.vmap(plain), buffer=2)(xs)
    np.testing.assert_array_equal(found["w"]["primal"], [[8.0, 8.0, 0.0], [16.0, 16.0, 0.0]])

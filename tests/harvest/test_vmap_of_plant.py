"""`plant` and `grad_wrt` under `vmap`: their values have the layout that `save_intermediates` gives.

The reference of a gradient adds a perturbation with that layout at the sow, in plain JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule import InputError
from chainrule.harvest import grad_wrt, plant, save_intermediates, sow

KEYS = jax.random.split(jax.random.key(0), 3)
W, X, V = (jax.random.normal(key, (3, 3)) for key in KEYS)
Z = jax.random.normal(KEYS[0], (2, 3, 4))


def check_round_trip(f, *args):
    """Planting what was found gives back the result; planting something else changes it."""
    result, found = save_intermediates(f)(*args)
    values = {name: entry["primal"] for name, entry in found.items()}
    np.testing.assert_allclose(plant(f, values)(*args), result, rtol=1e-5)
    others = tuple(2.0 * arg for arg in args)
    np.testing.assert_allclose(plant(f, values)(*others), result, rtol=1e-5)


def check_gradient(f, perturbed, *args):
    """`perturbed(ε, *args)` is f with ε, in the layout of what was found, added at the sow."""
    found = save_intermediates(f)(*args)[1]["h"]["primal"]
    expected = jax.grad(perturbed)(jax.tree.map(jnp.zeros_like, found), *args)
    gradient = grad_wrt(f, "h")(*args)["h"]
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), gradient, expected
    )


def one(z, e=None):
    h = jnp.tanh(W @ z)
    h = sow(h, "h") if e is None else h + e
    return (h * V[0]).sum() + (h**2).sum()


@pytest.mark.parametrize("in_axes", [0, 1])
def test_one_vmap(in_axes):
    """Square arrays, so that a transposed value would fit."""

    def f(x):
        return jnp.sum(jax.vmap(one, in_axes=in_axes)(x))

    check_round_trip(f, X)
    check_gradient(f, lambda e, x: jnp.sum(jax.vmap(one, in_axes=(in_axes, 0))(x, e)), X)


def test_without_the_axis_a_value_is_for_every_example():
    h = jnp.array([1.0, 2.0, 3.0])
    expected = (h * V[0]).sum() + (h**2).sum()
    np.testing.assert_allclose(plant(jax.vmap(one), {"h": h})(X), [expected] * 3, rtol=1e-6)
    with pytest.raises(InputError, match=r"batch axes \(3,\)") as raised:
        plant(jax.vmap(one), {"h": jnp.ones((2, 3))})(X)
    assert raised.value.code == "planted_shape"


@pytest.mark.parametrize(("outer", "inner"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (2, 0)])
def test_nested_vmaps(outer, inner):
    def scalar(z, e=None):
        h = jnp.sin(z)
        h = sow(h, "h") if e is None else h + e
        return h @ jnp.arange(1.0, 1.0 + h.size) + (h**2).sum()

    def f(z):
        return jnp.sum(jax.vmap(jax.vmap(scalar, in_axes=inner, out_axes=0), in_axes=outer)(z))

    def perturbed(e, z):
        return jnp.sum(jax.vmap(jax.vmap(scalar, in_axes=(inner, 0)), in_axes=(outer, 0))(z, e))

    check_round_trip(f, Z)
    check_gradient(f, perturbed, Z)


def test_out_axes():
    def f(x):
        return jax.vmap(lambda z: sow(W @ z, "h") * 2, in_axes=1, out_axes=1)(x)

    check_round_trip(f, X)


def test_vmap_in_scan():
    def f(x, e=None):
        def step(c, i):
            if e is None:
                return jax.vmap(lambda z: sow(jnp.sin(W @ z), "h") * V[0], in_axes=1)(c), None
            return jax.vmap(lambda z, e: (jnp.sin(W @ z) + e) * V[0], in_axes=(1, 0))(c, e[i]), None

        return jnp.sum(jax.lax.scan(step, x, jnp.arange(2))[0])

    check_round_trip(f, X)
    check_gradient(f, lambda e, x: f(x, e), X)


def test_scan_in_vmap():
    def run(z, e=None):
        def step(c, i):
            h = jnp.sin(W @ c)
            h = sow(h, "h") if e is None else h + e[i]
            return h * V[0], h

        end, hs = jax.lax.scan(step, z, jnp.arange(2))
        return jnp.sum(end) + jnp.sum(hs**2)

    def f(x):
        return jnp.sum(jax.vmap(run, in_axes=1)(x))

    check_round_trip(f, X)
    # Loops come before the batch.
    check_gradient(f, lambda e, x: jnp.sum(jax.vmap(run, in_axes=(1, 1))(x, e)), X)
    np.testing.assert_array_equal(
        plant(f, {"h": jnp.ones((3, 3))})(X), plant(f, {"h": jnp.ones(3)})(X)
    )


def test_while_in_vmap():
    def run(n, z):
        def body(state):
            i, c = state
            return i + 1, sow(jnp.sin(W @ c), "h")

        return jax.lax.while_loop(lambda s: s[0] < n, body, (0, z))[1]

    counts = jnp.array([1, 2, 3])
    f = jax.vmap(run)
    last = save_intermediates(f)(counts, X)[1]["h"]["primal"]
    np.testing.assert_allclose(f(counts, X), last, rtol=1e-6)
    planted = plant(f, {"h": V})(counts, X)
    np.testing.assert_allclose(planted, V, rtol=1e-6)


class TestValuesThatABatchShares:
    """What is sown does not depend on the batch. It is reported, and can be planted, per example."""

    def test_the_round_trip(self):
        def f(w, xs):
            return jax.vmap(lambda x: (sow(2.0 * w, "h") * x).sum())(xs)

        check_round_trip(lambda x: f(x[0], X), X)
        given = jnp.arange(9.0).reshape(3, 3)
        np.testing.assert_allclose(plant(f, {"h": given})(W[0], X), (given * X).sum(1), rtol=1e-5)
        np.testing.assert_allclose(plant(f, {"h": given[1]})(W[0], X), X @ given[1], rtol=1e-5)

    def test_nested(self):
        """The value depends on one of the two, on both, or on none."""

        def f(a, b):
            def inner(a, b):
                first = sow(a * 2.0, "outer only")
                second = sow(b * 3.0, "inner only")
                third = sow(a + b, "both")
                fourth = sow(V[0], "none")
                return first * second + third * jnp.sum(fourth)

            return jax.vmap(lambda a: jax.vmap(lambda b: inner(a, b))(b))(a)

        a, b = jnp.arange(2.0) + 1, jnp.arange(3.0) + 1
        _, found = save_intermediates(f)(a, b)
        np.testing.assert_array_equal(
            found["outer only"]["primal"], np.repeat(2 * a[:, None], 3, 1)
        )
        np.testing.assert_array_equal(found["inner only"]["primal"], np.repeat(3 * b[None], 2, 0))
        np.testing.assert_array_equal(found["both"]["primal"], a[:, None] + b)
        np.testing.assert_array_equal(found["none"]["primal"], np.broadcast_to(V[0], (2, 3, 3)))
        check_round_trip(f, a, b)
        given = jnp.arange(6.0).reshape(2, 3)
        planted = plant(f, {"outer only": given})(a, b)
        expected = given * 3 * b + (a[:, None] + b) * V[0].sum()
        np.testing.assert_allclose(planted, expected, rtol=1e-5)

    def test_the_gradient_is_one(self):
        """As the cotangent that `save_intermediates` finds: the sum over the examples."""

        def f(w, xs):
            return jnp.sum(jax.vmap(lambda x: jnp.sum(sow(2.0 * w, "h") * x))(xs))

        gradient = grad_wrt(f, "h")(W[0], X)["h"]
        np.testing.assert_allclose(gradient, X.sum(0), rtol=1e-5)
        _, found = save_intermediates(jax.grad(f))(W[0], X)
        np.testing.assert_allclose(found["h"]["cotangent"], gradient, rtol=1e-6)

    def test_in_a_loop(self):
        def f(xs):
            def run(x):
                return jax.lax.scan(lambda c, t: (c + sow(t, "h") * x, None), 0.0, jnp.arange(4.0))[
                    0
                ]

            return jax.vmap(run)(xs)

        xs = jnp.array([1.0, 2.0])
        check_round_trip(lambda x: f(xs) + 0 * x[0], xs)
        given = jnp.arange(8.0).reshape(4, 2)
        np.testing.assert_allclose(plant(f, {"h": given})(xs), given.sum(0) * xs)

    def test_tangents_have_the_axis_of_examples(self):
        """The tangent of a linear function is the same for all examples."""

        def pushed(x):
            return jax.jvp(lambda x: sow(2.0 * x, "h"), (x,), (1.0,))

        _, found = save_intermediates(jax.vmap(pushed))(jnp.arange(3.0))
        np.testing.assert_array_equal(found["h"]["primal"], [0.0, 2.0, 4.0])
        np.testing.assert_array_equal(found["h"]["tangent"], [2.0, 2.0, 2.0])


def test_trees_of_which_some_leaves_depend_on_the_batch():
    def f(w, xs, e=None):
        def run(x, e=None):
            tree = {"w": 2.0 * w, "x": x**2}
            tree = sow(tree, "h") if e is None else jax.tree.map(jnp.add, tree, e)
            return jnp.sum(tree["w"] * tree["x"] ** 2)

        return jnp.sum(jax.vmap(run)(xs) if e is None else jax.vmap(run)(xs, e))

    check_round_trip(f, W[0], X)
    check_gradient(f, lambda e, w, xs: f(w, xs, e), W[0], X)


def test_a_capture_around_a_planted_function_finds_what_is_used():
    def f(x):
        return jnp.sum(jax.vmap(lambda z: sow(z * 2, "h") ** 2 + sow(z, "other"))(x))

    given = jnp.array([1.0, 2.0, 3.0])
    result, found = save_intermediates(plant(f, {"h": given}))(X[0])
    np.testing.assert_allclose(result, 14.0 + X[0].sum(), rtol=1e-6)
    np.testing.assert_array_equal(found["h"]["primal"], given)
    np.testing.assert_array_equal(found["other"]["primal"], X[0])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=3), st.booleans())
@settings(max_examples=15)
def test_random_nests(layers, jitted):
    """Layers of `vmap` and `scan` around a sow of a vector, over random axes of one array."""
    sizes = [2 + n for n in range(len(layers))]

    def build(layers):
        if not layers:

            def leaf(z, e=None):
                h = jnp.sin(z)
                h = sow(h, "h") if e is None else h + e
                return jnp.sum(h**2 * jnp.arange(1.0, 3.0))

            return leaf
        (is_scan, axis), *rest = layers
        inner = build(rest)
        # The layers inside take one axis of z each; the vector has the last one.
        axis = axis % (len(rest) + 1)

        def scanned(z, e=None):
            def step(total, item):
                return total + (inner(item) if e is None else inner(*item)), None

            zs = jnp.moveaxis(z, axis, 0)
            return jax.lax.scan(step, 0.0, zs if e is None else (zs, e))[0]

        def mapped(z, e=None):
            if e is None:
                return jnp.sum(jax.vmap(inner, in_axes=axis)(z))
            # Loops inside put their axes in front of this one.
            n_loops = sum(is_scan for is_scan, _ in rest)
            return jnp.sum(jax.vmap(inner, in_axes=(axis, n_loops))(z, e))

        chosen = scanned if is_scan else mapped
        return jax.jit(chosen) if jitted else chosen

    f = build(layers)
    z = jnp.linspace(0.0, 1.0, int(np.prod(sizes)) * 2).reshape(*sizes, 2)
    check_round_trip(f, z)
    check_gradient(f, lambda e, z: f(z, e), z)

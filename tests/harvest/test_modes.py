"""Which derivatives come back, and what they are: all against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.harvest import save_intermediates, sow

X = 0.7
S, C = np.sin(X), np.cos(X)


def f(x):
    """h = sin x, f = h³: f' = 3h² cos x."""
    h = sow(jnp.sin(x), "h")
    return h**3


def modes(function, *args, **options):
    _, found = save_intermediates(function, **options)(*args)
    return found["h"]


def check(found, **expected):
    assert set(found) == set(expected)
    for mode, value in expected.items():
        np.testing.assert_allclose(found[mode], value, rtol=1e-5, err_msg=mode)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
class TestFirstOrder:
    def test_call(self, wrap):
        check(modes(wrap(f), X), primal=S)

    def test_grad(self, wrap):
        check(modes(jax.grad(wrap(f)), X), primal=S, cotangent=3 * S**2)

    def test_value_and_grad_under_jit(self, wrap):
        check(modes(jax.jit(jax.value_and_grad(wrap(f))), X), primal=S, cotangent=3 * S**2)

    def test_jvp(self, wrap):
        check(modes(lambda x: jax.jvp(wrap(f), (x,), (2.0,)), X), primal=S, tangent=2 * C)

    def test_linearize(self, wrap):
        def pushed_twice(x):
            _, push = jax.linearize(wrap(f), x)
            return push(1.0), push(5.0)

        found = modes(pushed_twice, X)
        np.testing.assert_allclose(found["tangent"], [C, 5 * C], rtol=1e-6)

    def test_two_backward_passes(self, wrap):
        def pulled_twice(x):
            _, pull = jax.vjp(wrap(f), x)
            return pull(1.0), pull(10.0)

        found = modes(pulled_twice, X)
        np.testing.assert_allclose(found["cotangent"], [3 * S**2, 30 * S**2], rtol=1e-6)
        np.testing.assert_allclose(found["primal"], S, rtol=1e-6)

    def test_a_pullback_made_outside(self, wrap):
        _, pull = jax.vjp(wrap(f), X)
        check(modes(pull, 2.0), cotangent=6 * S**2)


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
class TestSecondOrder:
    """Second derivatives of h³: with respect to h it is 6h."""

    def test_jvp_of_grad(self, wrap):
        found = modes(lambda x: jax.jvp(jax.grad(wrap(f)), (x,), (1.0,)), X)
        check(found, primal=S, cotangent=3 * S**2, tangent=C, tangent_of_cotangent=6 * S * C)

    def test_grad_of_jvp(self, wrap):
        # g = 3h² t with t = cos x: ∂g/∂h = 6ht, ∂g/∂t = 3h².
        found = modes(jax.grad(lambda x: jax.jvp(wrap(f), (x,), (1.0,))[1]), X)
        check(found, primal=S, tangent=C, cotangent=6 * S * C, cotangent_of_tangent=3 * S**2)

    def test_grad_of_grad(self, wrap):
        # The inner gradient is g = λ cos x with λ = 3h²; so ∂g/∂λ = cos x, ∂g/∂h = 6h cos x.
        found = modes(jax.grad(jax.grad(wrap(f))), X)
        check(
            found,
            primal=S,
            cotangent=3 * S**2,
            outer_cotangent=6 * S * C,
            cotangent_of_cotangent=C,
        )


def test_jvp_of_jvp():
    def pushed(x):
        return jax.jvp(lambda x: jax.jvp(f, (x,), (2.0,))[1], (x,), (5.0,))

    check(
        modes(pushed, X), primal=S, tangent=2 * C, outer_tangent=5 * C, tangent_of_tangent=-10 * S
    )


def test_hessian():
    def g(x):
        return jnp.sum(sow(x**2, "h") ** 2)

    x = jnp.array([1.0, 2.0])
    found = modes(jax.hessian(g), x)
    np.testing.assert_allclose(found["primal"], x**2)
    np.testing.assert_allclose(found["tangent"], np.diag(2 * x))
    np.testing.assert_allclose(found["cotangent"], (2 * x**2)[None])
    np.testing.assert_allclose(found["tangent_of_cotangent"], np.diag(4 * x)[:, None])


def test_jacobians_put_the_axis_of_directions_first():
    matrix = jnp.arange(6.0).reshape(3, 2)

    def g(x):
        return sow(matrix @ x, "h") ** 2

    x = jnp.array([1.0, 2.0])
    forward, backward = modes(jax.jacfwd(g), x), modes(jax.jacrev(g), x)
    np.testing.assert_allclose(forward["primal"], matrix @ x)
    np.testing.assert_allclose(forward["tangent"], matrix.T)
    np.testing.assert_allclose(backward["cotangent"], np.diag(2 * matrix @ x))


def test_leaves_without_derivative_are_none():
    def g(x):
        sown = sow({"n": 3, "x": x * 2, "on": True, "fixed": 7.0, "label": "text"}, "h")
        return sown["x"] * sown["n"]

    found = modes(jax.grad(g), 1.0)
    assert found["cotangent"] == {"n": None, "x": 3.0, "on": None, "fixed": 0.0, "label": "text"}
    assert found["primal"] == {"n": 3, "x": 2.0, "on": True, "fixed": 7.0, "label": "text"}
    pushed = modes(lambda x: jax.jvp(g, (x,), (1.0,)), 1.0)
    assert pushed["tangent"] == {"n": None, "x": 2.0, "on": None, "fixed": 0.0, "label": "text"}


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
def test_values_that_nobody_uses(wrap):
    @wrap
    def g(x):
        sow(x * 3, "h")
        return x**2

    check(modes(g, 2.0), primal=6.0)
    check(modes(jax.grad(g), 2.0), primal=6.0, cotangent=0.0)


def test_a_jit_without_results():
    @jax.jit
    def silent(x):
        sow(x + 1, "h")

    def g(x):
        silent(x)
        return x**2

    check(modes(g, 2.0), primal=3.0)
    check(modes(jax.grad(g), 2.0), primal=3.0, cotangent=0.0)


def test_linear_transpose():
    def g(x):
        return sow(3.0 * x, "h") * 2.0

    found = modes(lambda ct: jax.linear_transpose(g, 1.0)(ct), 5.0)
    check(found, cotangent=10.0)


def scanned(x):
    final, (first, doubled) = jax.lax.scan(
        lambda c, t: (jnp.sin(c) * t, (c[:1], c * 2)), x, jnp.arange(3.0)
    )
    return final + first.sum() + doubled.sum()


def looped(x):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x))[1]


@pytest.mark.parametrize("before", [scanned, looped])
@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        jax.jacrev,
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: jax.grad(lambda x: (f(x), x), has_aux=True),
        lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x + 1])),
    ],
    ids=["grad", "jacrev", "checkpoint", "has_aux", "vmap"],
)
def test_a_value_without_influence_may_come_from_what_has_no_transpose(before, transform):
    """JAX drops what leads to `floor` from the backward pass; it could not transpose it."""

    def f(x):
        rounded = jnp.floor(sow(before(x), "rounded"))
        return rounded.sum() + jnp.sin(sow(x * 2, "kept")).sum()

    x = jnp.array([0.3, 0.8])
    found, intermediates = save_intermediates(transform(f))(x)
    jax.tree.map(np.testing.assert_array_equal, found, transform(f)(x))
    assert intermediates["rounded"]["primal"].shape[-1:] == x.shape
    # Some versions of JAX transpose this scan; then the capture reports the zeros.
    assert not np.any(intermediates["rounded"].get("cotangent", 0.0))
    np.testing.assert_allclose(
        save_intermediates(jax.grad(f))(x)[1]["kept"]["cotangent"], np.cos(2 * x), rtol=1e-6
    )


@pytest.mark.parametrize("before", [scanned, looped])
def test_leaves_without_influence_do_not_disturb_those_that_have_some(before):
    """The gradient exists with a sow, too, captured or not. s·sin k has slopes s·cos k and sin k."""

    def f(x):
        tree = sow({"rounded": before(x), "k": x * 2, "s": jnp.ones(2)}, "h")
        return jnp.floor(tree["rounded"]).sum() + (tree["s"] * jnp.sin(tree["k"])).sum()

    x = jnp.array([0.3, 0.8])
    found, intermediates = save_intermediates(jax.grad(f))(x)
    for slope in (jax.grad(f)(x), jax.jit(jax.grad(f))(x), jax.grad(jax.jit(f))(x), found):
        np.testing.assert_allclose(slope, 2 * np.cos(2 * x), rtol=1e-6)
    cotangent = intermediates["h"]["cotangent"]
    assert cotangent["rounded"] is None or not np.any(cotangent["rounded"])
    np.testing.assert_allclose(cotangent["k"], np.cos(2 * x), rtol=1e-6)
    np.testing.assert_allclose(cotangent["s"], np.sin(2 * x), rtol=1e-6)


def test_an_error_of_the_function_is_raised_as_it_is():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        save_intermediates(jax.grad(f))(1.0)
    assert caught.value.__context__ is None

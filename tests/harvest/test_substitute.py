"""`plant` and `grad_wrt`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.errors import InputError, PathError
from chainrule.harvest import grad_wrt, plant, save_intermediates, sow


def f(x):
    h = sow({"a": jnp.sin(x), "n": 2, "empty": None}, "h")
    return jnp.sum(h["a"] ** 2) * h["n"]


def recurrence(x):
    def body(c, t):
        c = sow(jnp.sin(c) * t, "c")
        return c, c**2

    return jnp.sum(jax.lax.scan(body, x, jnp.array([1.0, 2.0, 3.0]))[1])


def test_planted_values_are_used():
    planted = {"h": {"a": jnp.array([1.0, 2.0]), "n": 3, "empty": None}}
    assert plant(f, planted)(jnp.zeros(2)) == 15.0
    assert jax.jit(plant(jax.jit(f), planted))(jnp.zeros(2)) == 15.0


def test_derivatives_do_not_flow_past_a_planted_value():
    def g(x):
        return sow(x * 2, "h") + x * 10

    assert jax.grad(plant(g, {"h": 5.0}))(1.0) == 10.0
    assert jax.grad(lambda value: plant(g, {"h": value})(1.0))(5.0) == 1.0


def test_planting_in_loops():
    values = jnp.array([1.0, 2.0, 3.0])
    assert plant(recurrence, {"c": values})(0.5) == 14.0
    assert plant(recurrence, {"c": 2.0})(0.5) == 12.0
    assert plant(jax.checkpoint(jax.jit(recurrence)), {"c": values})(0.5) == 14.0

    def reversed_sum(xs):
        return jax.lax.scan(lambda c, x: (c + sow(x, "x") * x, None), 0.0, xs, reverse=True)[0]

    assert plant(reversed_sum, {"x": values})(values) == 14.0

    def counting(n):
        return jax.lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + sow(c[0], "i")), (0, 0)
        )[1]

    assert plant(counting, {"i": jnp.array([10, 20, 30])})(3) == 60


def test_activation_patching():
    clean, found = save_intermediates(f)(jnp.array([0.1, 0.2]))
    patched = plant(f, {"h": found["h"]["primal"]})(jnp.array([5.0, 6.0]))
    np.testing.assert_allclose(patched, clean, rtol=1e-6)


def test_planting_inside_custom_derivatives_and_branches():
    @jax.custom_vjp
    def g(x):
        return sow(x * 2, "h") * 3

    g.defvjp(lambda x: (g(x), None), lambda _, cotangent: (cotangent * 100,))
    assert plant(g, {"h": 1.0})(5.0) == 3.0

    def h(x):
        return jax.lax.cond(x > 0, lambda x: sow(x, "h") * 2, lambda x: x, x)

    assert plant(h, {"h": 10.0})(1.0) == 20.0
    assert plant(h, {"h": 10.0})(-1.0) == -1.0


@pytest.mark.parametrize(
    ("values", "error", "code"),
    [
        ({"missing": 1.0}, PathError, "name_unknown"),
        ({"h": 1.0}, InputError, "planted_structure"),
        ({"h": {"a": jnp.ones(5), "n": 1, "empty": None}}, InputError, "planted_shape"),
    ],
)
def test_what_does_not_fit_is_refused(values, error, code):
    with pytest.raises(error) as raised:
        plant(f, values)(jnp.zeros(2))
    assert raised.value.code == code


def test_gradient_with_respect_to_an_intermediate():
    x = jnp.array([0.3, 0.4])
    gradient = grad_wrt(f, "h")(x)["h"]
    np.testing.assert_allclose(gradient["a"], 4 * jnp.sin(x), rtol=1e-6)
    assert gradient["n"] is None
    assert gradient["empty"] is None


def test_arguments_need_not_be_differentiable():
    def lookup(n, kind):
        h = sow(jnp.array([1.0, 4.0, 9.0])[n], "h")
        return jnp.sqrt(h) if kind == "root" else h

    assert grad_wrt(lookup, ["h"])(2, "root") == {"h": 1 / 6}


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
def test_agrees_with_the_cotangent_in_loops(wrap):
    _, found = save_intermediates(jax.grad(wrap(recurrence)))(0.9)
    gradient = grad_wrt(wrap(recurrence), "c")(0.9)["c"]
    np.testing.assert_allclose(gradient, found["c"]["cotangent"], rtol=1e-5)


def test_refuses_an_unknown_name():
    with pytest.raises(PathError, match="'h'"):
        grad_wrt(f, "missing")(jnp.zeros(2))


def test_values_shared_by_a_batch():
    def g(w, xs):
        return jnp.sum(jax.vmap(lambda x: sow(2.0 * w, "shared") * x)(xs))

    xs = jnp.array([1.0, 2.0, 3.0])
    assert grad_wrt(g, "shared")(1.0, xs)["shared"] == 6.0
    assert plant(g, {"shared": 10.0})(1.0, xs) == 60.0


def test_other_names_may_be_sown_twice():
    def g(x):
        x = sow(sow(x + 1, "twice") + 1, "twice")
        return sow(x * 2, "once") ** 2

    assert grad_wrt(g, "once")(1.0)["once"] == 12.0
    assert plant(g, {"twice": 0.0})(1.0) == 0.0
    with pytest.raises(ValueError, match="twice"):
        grad_wrt(g, "twice")(1.0)


@pytest.mark.parametrize(("sown", "given"), [(jnp.array(1), 2.7), (jnp.array(1.0), 1j)])
def test_a_planted_value_loses_nothing(sown, given):
    with pytest.raises(InputError, match="dtype") as raised:
        plant(lambda x: sow(x, "h") + 0, {"h": given})(sown)
    assert raised.value.code == "planted_dtype"
    assert plant(lambda x: sow(x, "h") + 0, {"h": True})(sown) == 1


@pytest.mark.parametrize(("sown", "given"), [(True, False), (3, 4), (1.5, 2.5), (np.int8(1), 2)])
def test_numbers_that_were_sown_can_be_replaced(sown, given):
    """Numbers that are part of the function, not arguments."""
    f = jax.jit(lambda x: sow({"n": sown, "x": x}, "h")["n"] + jnp.zeros(()))
    assert plant(f, {"h": {"n": given, "x": 1.0}})(1.0) == given

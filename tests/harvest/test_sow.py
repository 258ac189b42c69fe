"""`sow` by itself: the identity, free of cost, safe for symbolic zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import InputError
from chainrule.harvest import save_intermediates, sow


def test_is_the_identity_outside_of_traces():
    value = {"a": np.arange(3), "b": (1.5, None), "c": "text", "d": abs}
    sown = sow(value, "v")
    assert sown["a"] is value["a"]
    assert sown == value


def network(x, tag_it):
    h = jnp.tanh(x @ x)
    h = sow(h, "h") if tag_it else h
    return jnp.sum(h * x)


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.grad, jax.vmap, lambda f: jax.vmap(jax.grad(f))]
)
def test_leaves_no_operation_in_the_compiled_program(transform):
    x = (
        jnp.ones((2, 3, 3))
        if transform is jax.vmap or transform(len) is not len
        else jnp.ones((3, 3))
    )
    x = x[0] if transform is jax.grad else x

    def operations(tag_it):
        lowered = jax.jit(transform(lambda x: network(x, tag_it))).lower(x)
        text = lowered.compile().as_text()
        return sorted(
            line.split(" = ")[1].split("(")[0] for line in text.splitlines() if " = " in line
        )

    assert operations(True) == operations(False)


def test_symbolic_zeros_stay_symbolic():
    @jax.custom_jvp
    def product(x, fixed):
        return x * fixed

    seen = []

    def rule(primals, tangents):
        seen.append(type(tangents[1]).__name__)
        (x, fixed), (dx, dfixed) = primals, tangents
        is_zero = isinstance(dfixed, jax.custom_derivatives.SymbolicZero)
        return x * fixed, dx * fixed + (0.0 if is_zero else x * dfixed)

    product.defjvp(rule, symbolic_zeros=True)

    def f(x, fixed):
        return product(*sow((x, fixed), "pair"))

    assert jax.grad(f)(2.0, 3.0) == 3.0
    assert jax.jvp(lambda x: f(x, 3.0), (2.0,), (1.0,)) == (6.0, 3.0)
    pushed = save_intermediates(lambda x: jax.jvp(lambda x: f(x, 3.0), (x,), (1.0,)))
    assert pushed(2.0)[1]["pair"]["tangent"] == (1.0, 0.0)
    assert set(seen) == {"SymbolicZero"}
    # The cotangent of the fixed one is asked for only in a capture.
    assert save_intermediates(jax.grad(f))(2.0, 3.0)[1]["pair"]["cotangent"] == (3.0, 2.0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_tangents_may_be_plain_numbers(wrap):
    """Of Python, of NumPy, and those of integers, which JAX gives the type float0."""
    no_tangent = np.zeros((), jax.dtypes.float0)

    def f(x, n):
        x, n = sow((x, n), "pair")
        return x**2 * n

    f = wrap(f)
    for x, dx in ((2.0, 1.0), (np.float32(2), np.float32(1)), (jnp.float32(2), jnp.float32(1))):
        assert jax.jvp(wrap(lambda x: sow(x, "h") * 2), (x,), (dx,)) == (4.0, 2.0)
        assert jax.jvp(f, (x, 3), (dx, no_tangent)) == (12.0, 12.0)
        captured = save_intermediates(lambda x, dx: jax.jvp(f, (x, 3), (dx, no_tangent)))
        result, found = captured(x, dx)
        assert result == (12.0, 12.0)
        assert found["pair"] == {"primal": (2.0, 3), "tangent": (1.0, None)}
    (_, found), (_, pushed) = jax.jvp(
        save_intermediates(lambda x: sow(x, "h") ** 2), (3.0,), (1.0,)
    )
    assert (found["h"]["primal"], pushed["h"]["primal"]) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": 3}, "sow_name"),
        ({"name": "h", "reduce": "median"}, "sow_reduce"),
        ({"name": "h", "buffer": 0}, "sow_buffer"),
    ],
)
def test_refuses_options_that_mean_nothing(options, code):
    with pytest.raises(InputError) as raised:
        sow(1.0, **options)
    assert raised.value.code == code


def test_random_keys_and_empty_trees_can_be_sown():
    def f(key):
        sow(None, "nothing")
        return jax.random.normal(sow(key, "key"))

    _, found = save_intermediates(f)(jax.random.key(3))
    assert found["nothing"]["primal"] is None
    assert jnp.array_equal(
        jax.random.key_data(found["key"]["primal"]), jax.random.key_data(jax.random.key(3))
    )


def test_leaves_that_cannot_be_hashed():
    extra = {1, 2}
    _, found = save_intermediates(lambda x: sow((x, extra), "h")[0])(1.0)
    assert found["h"]["primal"] == (1.0, {1, 2})

"""`scan`, `map`, `fori_loop` and `while_loop`: stacked, reduced, ring-buffered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import InputError
from chainrule.harvest import save_intermediates, sow

TIMES = jnp.array([1.0, 2.0, 3.0])


def chain(x):
    """c ← sin(c)·t over t = 1, 2, 3."""

    def body(c, t):
        c = sow(jnp.sin(c) * t, "c")
        sow(c + 10.0, "unused")
        return c, c**2

    return jax.lax.scan(body, x, TIMES)[0]


def chain_by_hand(x):
    """Values and cotangents of `chain`, iteration by iteration."""
    before, values = [], []
    for t in (1.0, 2.0, 3.0):
        before.append(x)
        x = np.sin(x) * t
        values.append(x)
    cotangents = [1.0]
    for t, c in zip((3.0, 2.0), (before[2], before[1]), strict=True):
        cotangents.insert(0, cotangents[0] * np.cos(c) * t)
    return np.array(values), np.array(cotangents)


VALUES, COTANGENTS = chain_by_hand(0.9)


@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.grad(jax.checkpoint(f)),
    ],
    ids=["grad", "jit grad", "grad jit", "grad checkpoint"],
)
def test_scan_is_stacked(transform):
    _, found = save_intermediates(transform(chain))(0.9)
    np.testing.assert_allclose(found["c"]["primal"], VALUES, rtol=1e-5)
    np.testing.assert_allclose(found["c"]["cotangent"], COTANGENTS, rtol=1e-5)
    np.testing.assert_allclose(found["unused"]["primal"], VALUES + 10, rtol=1e-5)
    np.testing.assert_allclose(found["unused"]["cotangent"], np.zeros(3))


@pytest.mark.parametrize(
    ("reduce", "by_hand"),
    [
        ("last", lambda executed: executed[-1]),
        ("sum", np.sum),
        ("mean", np.mean),
        ("max", np.max),
        ("stack", None),
    ],
)
def test_reductions(reduce, by_hand):
    _, found = save_intermediates(jax.grad(chain), reduce=reduce)(0.9)
    if reduce == "stack":
        assert found["c"]["primal"].shape == (3,)
        return
    np.testing.assert_allclose(found["c"]["primal"], by_hand(VALUES), rtol=1e-5)
    # The backward pass executes the iterations in reverse.
    np.testing.assert_allclose(found["c"]["cotangent"], by_hand(COTANGENTS[::-1]), rtol=1e-5)


def test_a_sow_chooses_its_own_reduction():
    def f(xs):
        def body(c, x):
            sow(x, "sum", reduce="sum")
            sow(x, "all", reduce="stack")
            return c, sow(x, "default")

        return jax.lax.scan(body, 0.0, xs)[1]

    _, found = save_intermediates(f, reduce="max")(TIMES)
    assert found["sum"]["primal"] == 6.0
    assert found["default"]["primal"] == 3.0
    np.testing.assert_array_equal(found["all"]["primal"], TIMES)


def test_nested_scans_stack_outermost_first():
    def f(x):
        def outer(c, _):
            return chain(c) + c, None

        return jax.lax.scan(outer, x, None, length=2)[0]

    _, found = save_intermediates(jax.jit(jax.grad(f)))(0.9)
    first = chain_by_hand(0.9)[0]
    second, second_cotangents = chain_by_hand(first[-1] + 0.9)
    np.testing.assert_allclose(found["c"]["primal"], [first, second], rtol=1e-5)
    np.testing.assert_allclose(found["c"]["cotangent"][1], second_cotangents, rtol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "bfloat16", "float32", "complex64"]
)
def test_reductions_of_every_type_are_those_of_jax(dtype, reduce):
    """Sums of booleans count, and those of small integers do not overflow."""
    if (dtype, reduce) == ("complex64", "max"):
        return
    xs = jnp.array([100, 100, 0, 1]).astype(dtype)

    def scanned(xs):
        return jax.lax.scan(lambda c, x: (c, sow(x, "h")), 0.0, xs)

    def repeated(xs):
        n = xs.shape[0]
        return jax.lax.while_loop(lambda i: i < n, lambda i: i + sow(xs[i], "h").size, 0)

    expected = getattr(jnp, reduce)(xs)
    for f in (scanned, repeated):
        value = save_intermediates(f, reduce=reduce)(xs)[1]["h"]["primal"]
        np.testing.assert_allclose(value, expected, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
        assert value.dtype == expected.dtype


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_random_keys_are_no_numbers(reduce):
    def f(key):
        return jax.lax.scan(
            lambda c, _: (sow(jax.random.split(c)[0], "key"), None), key, None, length=2
        )

    with pytest.raises(InputError, match="'key'") as raised:
        save_intermediates(f, reduce=reduce)(jax.random.key(0))
    assert raised.value.code == "sow_reduce"
    save_intermediates(f, reduce="last")(jax.random.key(0))


def test_map_and_fori_loop():
    _, found = save_intermediates(lambda xs: jax.lax.map(lambda x: sow(x * 2, "h"), xs))(TIMES)
    np.testing.assert_array_equal(found["h"]["primal"], 2 * TIMES)

    def static(x):
        return jax.lax.fori_loop(0, 3, lambda i, c: sow(c * 2 + i, "h"), x)

    _, found = save_intermediates(jax.grad(static))(1.0)
    np.testing.assert_array_equal(found["h"]["primal"], [2.0, 5.0, 12.0])
    np.testing.assert_array_equal(found["h"]["cotangent"], [4.0, 2.0, 1.0])

    def dynamic(n):
        return jax.lax.fori_loop(0, n, lambda i, c: sow(c * 2 + i, "h"), 1)

    _, found = save_intermediates(dynamic)(jnp.int32(3))
    assert found["h"] == {"primal": 12, "count": 3, "taken": True}


def test_values_that_do_not_change_are_stacked_too():
    """JAX moves them out of the loop when it differentiates."""

    def f(w, c):
        def body(c, _):
            return c * sow(w * 2, "scaled"), None

        return jax.lax.scan(body, c, None, length=3)[0]

    for function in (f, jax.grad(f), jax.grad(f, argnums=1), jax.grad(jax.jit(f))):
        _, found = save_intermediates(function)(1.0, 3.0)
        np.testing.assert_array_equal(found["scaled"]["primal"], [2.0] * 3)
    _, found = save_intermediates(jax.grad(f))(1.0, 3.0)
    np.testing.assert_array_equal(found["scaled"]["cotangent"], [12.0] * 3)


def doubling(x):
    return jax.lax.while_loop(lambda c: c < 10, lambda c: sow(c * 2, "w"), x)


def test_while_keeps_the_last_value():
    assert save_intermediates(doubling)(1.0) == (
        16.0, {"w": {"primal": 16.0, "count": 4, "taken": True}}
    )  # fmt: skip
    assert save_intermediates(doubling)(20.0) == (
        20.0, {"w": {"primal": 0.0, "count": 0, "taken": False}}
    )  # fmt: skip


def test_while_ring_buffer():
    captured = save_intermediates(doubling, buffer=3)
    for x, expected in ((1.0, [4.0, 8.0, 16.0]), (4.0, [8.0, 16.0, 0.0]), (20.0, [0.0] * 3)):
        np.testing.assert_array_equal(captured(x)[1]["w"]["primal"], expected)
    assert captured(4.0)[1]["w"]["count"] == 2


def test_while_reductions():
    _, found = save_intermediates(doubling, reduce="sum")(1.0)
    assert found["w"]["primal"] == 30.0
    _, found = save_intermediates(doubling, reduce="mean")(1.0)
    assert found["w"]["primal"] == 7.5


def test_while_condition():
    def f(x):
        return jax.lax.while_loop(
            lambda c: sow(c + 0.5, "asked") < 10, lambda c: sow(c * 2, "w"), x
        )

    result, found = save_intermediates(f, buffer=2)(3.0)
    assert result == 12.0
    np.testing.assert_array_equal(found["asked"]["primal"], [6.5, 12.5])
    assert found["asked"]["count"] == 3
    np.testing.assert_array_equal(found["w"]["primal"], [6.0, 12.0])
    assert found["w"]["count"] == 2


def test_jvp_of_while():
    _, found = save_intermediates(lambda x: jax.jvp(doubling, (x,), (1.0,)))(3.0)
    assert found["w"]["tangent"] == 4.0


def test_while_inside_scan_inside_while():
    def f(x):
        def body(state):
            i, c = state
            ends = jax.lax.scan(
                lambda _, x: (None, doubling(x)), None, jnp.array([1.0, 6.0, 40.0]) + i
            )[1]
            return i + 1, c + ends.sum()

        return jax.lax.while_loop(lambda state: state[0] < 2, body, (0, x))[1]

    _, found = save_intermediates(f)(0.0)
    # In the last outer iteration the loops start at 2, 7 and 41.
    np.testing.assert_array_equal(found["w"]["primal"], [16.0, 14.0, 0.0])
    np.testing.assert_array_equal(found["w"]["count"], [3, 1, 0])
    np.testing.assert_array_equal(found["w"]["taken"], [True, True, False])


def test_associative_scan_needs_append():
    def f(xs):
        return jax.lax.associative_scan(lambda a, b: sow(a + b, "sums"), xs)

    with pytest.raises(ValueError, match="append"):
        save_intermediates(f)(TIMES)
    result, found = save_intermediates(f, duplicates="append")(TIMES)
    np.testing.assert_array_equal(result, [1.0, 3.0, 6.0])
    assert isinstance(found["sums"]["primal"], list)

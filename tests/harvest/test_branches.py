"""`cond` and `switch`: every branch's values, with a mask."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.harvest import save_intermediates, sow


def choose(x):
    return jax.lax.cond(
        x > 0, lambda x: sow(x * 2, "positive") ** 2, lambda x: sow(x * 3, "negative"), x
    )


def test_values_and_masks_of_both_branches():
    captured = save_intermediates(choose)
    assert captured(2.0)[1] == {
        "negative": {"primal": 0.0, "taken": False},
        "positive": {"primal": 4.0, "taken": True},
    }
    assert captured(-2.0)[1] == {
        "negative": {"primal": -6.0, "taken": True},
        "positive": {"primal": 0.0, "taken": False},
    }


def test_gradients_of_branches():
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        _, found = save_intermediates(jax.grad(wrap(choose)))(2.0)
        assert found["positive"] == {"primal": 4.0, "cotangent": 8.0, "taken": True}
        assert found["negative"] == {"primal": 0.0, "cotangent": 0.0, "taken": False}


def test_a_name_in_several_branches_is_one_value():
    def f(n, x):
        branches = [lambda x, k=k: sow(x * k, "h") if k else x for k in range(3)]
        return jax.lax.switch(n, branches, x)

    captured = save_intermediates(f)
    assert captured(2, 5.0)[1] == {"h": {"primal": 10.0, "taken": True}}
    assert captured(0, 5.0)[1] == {"h": {"primal": 0.0, "taken": False}}

    def in_all(x):
        return jax.lax.cond(x > 0, lambda x: sow(x * 2, "h"), lambda x: sow(x * 3, "h"), x)

    assert save_intermediates(in_all)(-1.0)[1] == {"h": {"primal": -3.0}}
    assert save_intermediates(jax.grad(in_all))(-1.0)[1] == {
        "h": {"primal": -3.0, "cotangent": 1.0}
    }


def test_masks_are_stacked_and_reductions_skip_what_did_not_run():
    def f(xs):
        return jax.lax.map(choose, xs)

    xs = jnp.array([1.0, -2.0, 3.0])
    _, found = save_intermediates(f)(xs)
    np.testing.assert_array_equal(found["positive"]["taken"], [True, False, True])
    np.testing.assert_array_equal(found["positive"]["primal"], [2.0, 0.0, 6.0])
    for reduce, positive, negative in (
        ("mean", 4.0, -6.0),
        ("max", 6.0, -6.0),
        ("last", 6.0, -6.0),
    ):
        _, found = save_intermediates(f, reduce=reduce)(xs)
        assert found["positive"]["primal"] == positive
        assert found["negative"]["primal"] == negative
        assert found["negative"]["taken"]
    _, found = save_intermediates(f, reduce="max")(jnp.array([-1.0, -2.0]))
    assert found["positive"] == {"primal": 0.0, "taken": False}


def test_cond_in_while():
    def f(x):
        def body(c):
            return jax.lax.cond(c > 4, lambda c: c + 1, lambda c: sow(c * 2, "doubled"), c)

        return jax.lax.while_loop(lambda c: c < 8, body, x)

    assert save_intermediates(f)(1.0) == (
        8.0, {"doubled": {"primal": 8.0, "count": 3, "taken": True}}
    )  # fmt: skip
    assert save_intermediates(f)(5.0)[1] == {"doubled": {"primal": 0.0, "count": 0, "taken": False}}


def test_random_keys_in_branches():
    def f(flag, key):
        return jax.lax.cond(
            flag, lambda key: jax.random.normal(sow(key, "key")), lambda key: 0.0, key
        )

    _, found = save_intermediates(f)(False, jax.random.key(1))
    assert not found["key"]["taken"]

"""The rewriter by itself: sine equations hand out their results, from anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule._jaxpr import FOLDS, Extra, Rewriter, ring
from chainrule.errors import CapabilityError


def is_sine(eqn):
    return eqn.primitive.name == "sin"


def hand_out(fold=None, open_fold=None):
    def claim(eqn, operands, loops):
        (value,) = operands
        result = jnp.sin(value)
        return [result], [Extra((result,), "sine", fold=fold, open_fold=open_fold)]

    return Rewriter(claim, is_claimed=is_sine)


def run(function, *args, **options):
    program = jax.make_jaxpr(function)(*args)
    return jax.jit(lambda *args: hand_out(**options).run(program, args))(*args)


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(jax.jit(f)))]
)
def test_calls(wrap):
    (result,), (extra,) = run(wrap(lambda x: jnp.sin(x) * 2), 1.0)
    np.testing.assert_allclose(result, 2 * np.sin(1.0), rtol=1e-6)
    np.testing.assert_allclose(extra.leaves[0], np.sin(1.0), rtol=1e-6)


def scanned(x):
    return jax.lax.scan(lambda c, t: (jnp.sin(c) + t, c), x, jnp.arange(3.0))


def sines(x):
    values = []
    for t in range(3):
        values.append(np.sin(x))
        x = values[-1] + t
    return np.array(values)


def test_scan_stacks_or_folds():
    outputs, (extra,) = run(scanned, 1.0)
    np.testing.assert_allclose(extra.leaves[0], sines(1.0), rtol=1e-6)
    assert extra.stacked == 1
    for got, expected in zip(outputs, scanned(1.0), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    for name, by_hand in (("sum", np.sum), ("mean", np.mean), ("max", np.max)):
        _, (extra,) = run(scanned, 1.0, fold=FOLDS[name])
        np.testing.assert_allclose(extra.leaves[0], by_hand(sines(1.0)), rtol=1e-6)
    _, (extra,) = run(scanned, 1.0, fold=ring(2))
    np.testing.assert_allclose(extra.leaves[0], sines(1.0)[-2:], rtol=1e-6)


def test_while_counts():
    def f(x):
        return jax.lax.while_loop(lambda c: c < 4, lambda c: c + 1 + 0 * jnp.sin(c), x)

    _, (extra,) = run(f, 1.5)
    np.testing.assert_allclose(extra.leaves[0], np.sin(3.5), rtol=1e-6)
    assert extra.count == 3
    assert extra.taken
    _, (extra,) = run(f, 1.5, open_fold=ring(4))
    np.testing.assert_allclose(extra.leaves[0], [*np.sin([1.5, 2.5, 3.5]), 0], rtol=1e-6)


def test_branches_share_equal_extras():
    def f(x):
        return jax.lax.cond(x > 0, lambda x: jnp.sin(x) * 2, lambda x: jnp.sin(x) * 3, x)

    (result,), (extra,) = run(f, -1.0)
    np.testing.assert_allclose(
        [result, extra.leaves[0]], [3 * np.sin(-1.0), np.sin(-1.0)], rtol=1e-6
    )
    assert extra.taken is None


def test_programs_without_a_claimed_equation_are_bound_as_they_were():
    def f(x):
        return jax.lax.scan(lambda c, _: (jax.jit(jnp.cos)(c), None), jnp.sin(x), None, length=2)[0]

    program = jax.make_jaxpr(f)(1.0)
    again = jax.make_jaxpr(lambda x: hand_out().run(program, [x])[0])(1.0)
    assert again.jaxpr.eqns[1].params["jaxpr"] is program.jaxpr.eqns[1].params["jaxpr"]


def test_substitution_reaches_everywhere_and_counts_iterations():
    def claim(eqn, operands, loops):
        return [operands[0] + 10.0 * loops[-1] if loops else operands[0]], []

    rewriter = Rewriter(claim, is_claimed=is_sine, substitutes=True)
    program = jax.make_jaxpr(lambda x: scanned(jax.jit(jnp.sin)(x))[0])(1.0)
    (result,), extras = rewriter.run(program, [1.0])
    # c ← c + 10·i + t for i = t = 0, 1, 2.
    assert result == 1.0 + (0 + 0) + (10 + 1) + (20 + 2)
    assert extras == []


def test_what_cannot_be_entered_is_named():
    def f(b):
        return jax.lax.custom_linear_solve(
            lambda x: 2 * jnp.sin(x), b, lambda _, b: b / 2, symmetric=True
        )

    with pytest.raises(CapabilityError, match="custom_linear_solve") as raised:
        run(f, 1.0)
    assert raised.value.details == {"primitive": "custom_linear_solve"}


def test_a_program_called_in_several_places_is_staged_once():
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    program = jax.make_jaxpr(lambda x: inner(inner(inner(x))))(1.0)
    again = jax.make_jaxpr(lambda x: hand_out().run(program, [x])[0])(1.0)
    assert len({id(eqn.params["jaxpr"]) for eqn in again.jaxpr.eqns}) == 1

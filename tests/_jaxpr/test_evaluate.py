"""Evaluation with rules, exact tracing, inlining."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import (
    as_function,
    bind_equation,
    evaluate,
    inline_calls,
    trace,
    trace_avals,
    walk,
)


def test_a_rule_replaces_equations():
    program = jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.cos(x))(1.0)

    def rule(eqn, values):
        return [values[0] * 100] if eqn.primitive.name == "sin" else None

    (result,) = evaluate(program, [1.0], rule)
    np.testing.assert_allclose(result, 100 + np.cos(1.0), rtol=1e-6)


def test_equations_of_every_kind_can_be_bound_again():
    @jax.custom_vjp
    def custom(x):
        return jnp.sin(x)

    custom.defvjp(lambda x: (jnp.sin(x), None), lambda _, cotangent: (cotangent * 7,))

    def f(x):
        x = jax.jit(jnp.tanh)(jax.checkpoint(jnp.cos)(x))
        x = jax.lax.scan(lambda c, t: (c * t, c), x, jnp.ones(3))[0]
        x = jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)
        return custom(jax.lax.cond(x > 0, jnp.abs, jnp.negative, x))

    program = jax.make_jaxpr(f)(1.0)
    (result,) = evaluate(program, [1.0])
    np.testing.assert_allclose(result, f(1.0), rtol=1e-6)
    (traced,) = jax.jit(lambda x: evaluate(program, [x]))(1.0)
    np.testing.assert_allclose(traced, f(1.0), rtol=1e-6)

    custom_program = jax.make_jaxpr(custom)(1.0)
    assert jax.grad(lambda x: evaluate(custom_program, [x])[0])(1.0) == 7.0


def test_equations_as_functions():
    program = jax.make_jaxpr(lambda x: jax.lax.pow(x, 3.0))(2.0)
    (eqn,) = program.jaxpr.eqns
    (result,) = bind_equation(eqn, [2.0, 3.0])
    assert result == 8.0
    assert jax.grad(lambda x: as_function(eqn)(x, 3.0)[0])(2.0) == 12.0


def test_trace_of_trees():
    program, in_tree, out_tree = trace(lambda a, *, b: {"sum": a["x"] + b}, {"x": 1.0}, b=2.0)
    assert len(program.in_avals) == 2
    assert jax.tree.unflatten(out_tree, evaluate(program, [1.0, 2.0])) == {"sum": 3.0}
    assert in_tree == jax.tree.structure((({"x": 1.0},), {"b": 2.0}))


def test_trace_avals_keeps_avals():
    program = jax.make_jaxpr(lambda x, y: (x * 2, y * 2))(1.0, jnp.float32(1.0))
    again = trace_avals(lambda *inputs: evaluate(program, inputs), program.in_avals)
    assert again.in_avals == program.in_avals
    assert again.out_avals == program.out_avals


def test_each_call_site_gets_fresh_variables():
    inner = jax.jit(lambda x: jnp.sin(x) * jnp.arange(3.0))

    def f(x):
        return inner(inner(x))

    flat = inline_calls(jax.make_jaxpr(f)(jnp.ones(3)))
    assert "jit" not in {eqn.primitive.name for eqn in flat.jaxpr.eqns}
    variables = [var for eqn in flat.jaxpr.eqns for var in eqn.outvars]
    assert len(variables) == len(set(variables))
    np.testing.assert_allclose(evaluate(flat, [jnp.ones(3)])[0], f(jnp.ones(3)), rtol=1e-6)


def test_inlining_goes_deep_and_leaves_loops_alone():
    def f(x):
        deep = jax.jit(lambda x: jax.jit(jnp.sin)(x) + 1)
        return jax.lax.scan(lambda c, _: (deep(c), None), deep(x), None, length=2)[0]

    flat = inline_calls(jax.make_jaxpr(f)(1.0))
    assert [eqn.primitive.name for eqn in flat.jaxpr.eqns] == ["sin", "add", "scan"]
    assert any(eqn.primitive.name == "jit" for eqn in walk(flat))
    np.testing.assert_allclose(evaluate(flat, [1.0])[0], f(1.0), rtol=1e-6)


def test_only_named_primitives_are_inlined():
    program = jax.make_jaxpr(jax.checkpoint(jnp.sin))(1.0)
    assert [eqn.primitive.name for eqn in inline_calls(program).jaxpr.eqns] == ["remat2"]
    inlined = inline_calls(program, {"remat2", "checkpoint"})
    assert [eqn.primitive.name for eqn in inlined.jaxpr.eqns] == ["sin"]

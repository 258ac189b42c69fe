"""Sub-programs of every higher-order primitive: roles, operands, results; the walker; source lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule._jaxpr import (
    ClosedJaxpr,
    Jaxpr,
    Primitive,
    close_program,
    equations_inside,
    evaluate,
    locate,
    subprograms,
    walk,
)


def equation(function, *args, name):
    (eqn,) = [
        eqn for eqn in jax.make_jaxpr(function)(*args).jaxpr.eqns if eqn.primitive.name == name
    ]
    return eqn


@jax.custom_vjp
def squared(x):
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, cotangent: (2 * x * cotangent,))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jax.jit(lambda x: x + 1), "jit"),
        (jax.checkpoint(lambda x: x + 1), "remat2"),
        (jax.nn.relu, "custom_jvp_call"),
        (squared, "custom_vjp_call"),
    ],
)
def test_calls(function, name):
    (sub,) = subprograms(equation(function, 1.0, name=name))
    assert (sub.role, sub.operands, sub.results) == ("call", (0,), (0,))
    (result,) = evaluate(sub.program, [3.0])
    assert result == function(3.0)


def test_shard_map():
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("a")
    mapped = jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=spec, out_specs=spec)
    (sub,) = subprograms(equation(mapped, jnp.ones(2), name="shard_map"))
    assert sub.role == "call"


def test_scan():
    def f(w, c, xs):
        return jax.lax.scan(lambda c, x: (c * w, x + c), c, xs)

    (sub,) = subprograms(equation(f, 2.0, 1.0, jnp.ones(3), name="scan"))
    assert sub.role == "body"
    assert sub.operands == (0, 1, 2)
    assert sub.results == (0, 1)
    assert [float(x) for x in evaluate(sub.program, [2.0, 3.0, 10.0])] == [6.0, 13.0]


def test_while():
    def f(limit, step, x):
        return jax.lax.while_loop(lambda c: c < limit, lambda c: c + step, x)

    condition, body = subprograms(equation(f, 10.0, 3.0, 1.0, name="while"))
    assert (condition.role, condition.operands, condition.results) == ("condition", (0, 2), (None,))
    assert (body.role, body.operands, body.results) == ("body", (1, 2), (0,))
    assert not evaluate(condition.program, [10.0, 11.0])[0]
    assert evaluate(body.program, [3.0, 1.0])[0] == 4.0


def test_cond():
    def f(n, x):
        return jax.lax.switch(n, [lambda x: x, lambda x: x * 2, lambda x: x * 3], x)

    subs = subprograms(equation(f, 1, 5.0, name="cond"))
    assert [sub.role for sub in subs] == ["branch"] * 3
    assert [sub.index for sub in subs] == [0, 1, 2]
    assert all(sub.operands == (1,) for sub in subs)
    assert [float(evaluate(sub.program, [5.0])[0]) for sub in subs] == [5.0, 10.0, 15.0]


def test_custom_linear_solve():
    def f(a, b):
        return jax.lax.custom_linear_solve(lambda x: a * x, b, lambda _, b: b / a, symmetric=True)

    subs = subprograms(equation(f, 2.0, 6.0, name="custom_linear_solve"))
    assert subs
    assert {sub.role for sub in subs} == {"operator"}
    assert all(sub.operands[0] is not None for sub in subs)
    assert all(sub.operands[-1] is None for sub in subs)


def test_combiners_and_first_order_primitives():
    eqn = equation(lambda x: x.at[0].add(1.0), jnp.ones(3), name="scatter-add")
    assert {sub.role for sub in subprograms(eqn)} <= {"combiner"}
    (sine,) = jax.make_jaxpr(jnp.sin)(1.0).jaxpr.eqns
    assert subprograms(sine) == ()


def test_a_primitive_that_is_not_in_the_table_is_seen():
    unheard_of = Primitive("unheard_of")
    unheard_of.multiple_results = True
    unheard_of.def_abstract_eval(lambda x, *, programs: programs[0].out_avals)
    program = jax.make_jaxpr(jnp.sin)(1.0)
    eqn = equation(lambda x: unheard_of.bind(x, programs=(program,))[0], 1.0, name="unheard_of")
    (sub,) = subprograms(eqn)
    assert (sub.role, sub.parameter, sub.index) == ("unknown", "programs", 0)


@pytest.mark.skipif(Jaxpr is ClosedJaxpr, reason="this JAX has no open programs")
def test_constants_of_an_open_program_are_its_first_inputs():
    """lineax keeps such programs in the parameters of `linear_solve`, and their constants as operands."""
    opaque = Primitive("opaque")
    opaque.multiple_results = True
    opaque.def_abstract_eval(lambda x, *, static: [x])
    closed = jax.make_jaxpr(lambda w, x: w * x)(1.0, 1.0).jaxpr
    weight, x = closed.invars
    open_program = close_program(
        [x], closed.outvars, closed.eqns, like=closed, constvars=[weight], consts=[2.0]
    ).jaxpr
    eqn = equation(lambda x: opaque.bind(x, static=("t", open_program))[0], 1.0, name="opaque")
    (sub,) = subprograms(eqn)
    assert (sub.role, sub.parameter, sub.index) == ("unknown", "static", 1)
    assert sub.operands == (None, None)
    assert evaluate(sub.program, [2.0, 3.0]) == [6.0]


def nested(x):
    y = jnp.sin(x)
    z = jax.lax.scan(lambda c, _: (jax.jit(jnp.cos)(c), None), y, None, length=2)[0]
    return jnp.tanh(z)


def test_the_walker_goes_in_program_order():
    equations = list(walk(jax.make_jaxpr(nested)(1.0)))
    assert [eqn.primitive.name for eqn in equations] == ["sin", "scan", "jit", "cos", "tanh"]
    assert list(equations_inside(equations[1])) == equations[2:4]


def test_the_walker_visits_condition_before_body_and_branches_in_order():
    def f(x):
        x = jax.lax.while_loop(lambda c: jnp.sin(c) < 0, jnp.cos, x)
        return jax.lax.cond(x > 0, jnp.tanh, jnp.exp, x)

    names = [eqn.primitive.name for eqn in walk(jax.make_jaxpr(f)(1.0))]
    interesting = [name for name in names if name in ("sin", "cos", "tanh", "exp")]
    assert interesting == ["sin", "cos", "exp", "tanh"]


def test_source_lines():
    sine, *_, tanh = jax.make_jaxpr(nested)(1.0).jaxpr.eqns
    first = nested.__code__.co_firstlineno
    assert locate(sine).line == first + 1
    assert locate(tanh).line == first + 3
    assert locate(sine).file == __file__
    assert str(locate(sine)) == f"{__file__}:{first + 1} (nested)"


def test_source_lines_survive_evaluation():
    program = jax.make_jaxpr(nested)(1.0)
    again = jax.make_jaxpr(lambda x: evaluate(program, [x]))(1.0)
    before = [locate(eqn) for eqn in walk(program)]
    after = [locate(eqn) for eqn in walk(again)]
    assert before == after
    np.testing.assert_allclose(evaluate(program, [0.3])[0], nested(0.3), rtol=1e-6)

"""Every private name of JAX that we use, one by one: this is where a new JAX release fails first."""

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import ad, batching, mlir, partial_eval

from chainrule._jaxpr import _names as names
from chainrule._jaxpr import evaluate


def equations(function, *args):
    return jax.make_jaxpr(function)(*args).jaxpr.eqns


def test_everything_exported_is_exercised_here():
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    missing = [name for name in names.__all__ if f"names.{name}" not in text]
    assert not missing


def test_classes():
    program = jax.make_jaxpr(lambda x: jnp.sin(x) * 2.0)(1.0)
    sine, product = program.jaxpr.eqns
    assert isinstance(program, names.ClosedJaxpr)
    assert isinstance(program.jaxpr, names.Jaxpr)
    assert isinstance(sine, names.JaxprEqn)
    assert isinstance(sine.primitive, names.Primitive)
    assert isinstance(sine.outvars[0], names.Var)
    assert isinstance(product.invars[1], names.Literal)
    assert isinstance(sine.outvars[0], names.Atom)


def test_drop_variables():
    dropped = names.DropVar(names.aval_of(1.0))
    assert isinstance(dropped, names.Var)
    assert not isinstance(names.fresh_variable(dropped.aval), names.DropVar)


def test_fresh_variables_are_all_different():
    aval = names.aval_of(jnp.ones(3))
    one, other = names.fresh_variable(aval), names.fresh_variable(aval)
    assert one is not other
    assert one.aval == aval
    assert len({one, other}) == 2


def test_avals_are_exact():
    assert names.aval_of(1.0).weak_type
    assert not names.aval_of(jnp.float32(1.0)).weak_type
    assert names.aval_of(jnp.ones((2, 3))).shape == (2, 3)


def test_programs_from_parts():
    program = jax.make_jaxpr(lambda x, y: jnp.sin(x) + y)(1.0, 2.0)
    jaxpr = program.jaxpr
    swapped = names.close_program(jaxpr.invars[::-1], jaxpr.outvars, jaxpr.eqns, like=jaxpr)
    (result,) = evaluate(swapped, [5.0, 0.0])
    assert result == 5.0
    shorter = names.close_program(jaxpr.invars, [*jaxpr.outvars] * 2, jaxpr.eqns, like=jaxpr)
    assert len(shorter.out_avals) == 2
    (x, y), like = jaxpr.invars, jaxpr
    inner = names.close_program(
        [x], jaxpr.outvars, jaxpr.eqns, like=like, constvars=[y], consts=[5.0]
    )
    (result,) = evaluate(names.constants_first(inner.jaxpr), [5.0, 0.0])
    assert result == 5.0


def test_equations_can_be_replaced():
    sine, product = equations(lambda x: jnp.sin(x) * 2.0, 1.0)
    replaced = product.replace(invars=sine.invars + product.invars[1:], outvars=sine.outvars)
    assert replaced.invars[0] is sine.invars[0]
    assert replaced.outvars == list(sine.outvars)
    assert sine.replace().primitive is sine.primitive


def test_bind_parameters_of_custom_derivatives():
    (eqn,) = equations(jax.nn.relu, 1.0)
    functions, params = names.bind_parameters(eqn)
    assert eqn.primitive.bind(*functions, -1.0, **params) is not None


def test_equation_context_keeps_source_and_names():
    def f(x):
        with jax.named_scope("layer"):
            return jnp.sin(x)

    (eqn,) = equations(f, 1.0)
    assert "layer" in names.name_stack_of(eqn)

    def again(x):
        with names.equation_context(eqn):
            return jnp.cos(x)

    (copied,) = equations(again, 1.0)
    assert "layer" in names.name_stack_of(copied)
    assert next(names.user_frames_of(copied)) == next(names.user_frames_of(eqn))


def test_transposed_equations_say_so():
    stacks = [
        names.name_stack_of(eqn) for eqn in equations(jax.grad(lambda x: jnp.sin(x) ** 2), 1.0)
    ]
    assert any("transpose" in stack for stack in stacks)
    assert not all("transpose" in stack for stack in stacks)


def test_tracing_keeps_exact_avals():
    avals = [names.aval_of(1.0), names.aval_of(jnp.float32(1.0))]
    program = names.trace_flat(lambda x, y: [x * 2, y * 2], avals)
    assert [aval.weak_type for aval in program.in_avals] == [True, False]
    assert [aval.weak_type for aval in program.out_avals] == [True, False]


def test_scan_layout():
    def f(w, c, xs):
        return jax.lax.scan(lambda c, x: (c * w + x[0], x[1]), c, (xs, xs))

    *_, eqn = equations(f, 2.0, 1.0, jnp.ones(3))
    assert names.scan_layout(eqn) == (1, 1)


def test_manual_axes_in_the_order_of_the_mesh():
    kinds = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((1, 1, 1), ("c", "a", "b"), axis_types=kinds)
    spec = jax.sharding.PartitionSpec("a", "c")
    mapped = jax.shard_map(
        lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"a", "c"}
    )
    *_, eqn = equations(mapped, jnp.ones((2, 2)))
    assert names.manual_axes(eqn) == ("c", "a")


def test_unspecified_is_what_jit_uses():
    (eqn,) = equations(jax.jit(lambda x: x + 1), 1.0)
    assert eqn.params["out_shardings"] == (names.UNSPECIFIED,)


def test_is_transforming():
    assert not names.is_transforming()
    seen = []
    jax.make_jaxpr(lambda x: seen.append(names.is_transforming()) or x)(1.0)
    jax.grad(lambda x: seen.append(names.is_transforming()) or x)(1.0)
    assert seen == [True, True]


@pytest.mark.parametrize("older", [False, True])
def test_trace_state(older):
    state = names._TraceState() if older else names.trace_state
    assert state.value is names.NO_TRACE
    seen = []
    jax.vmap(lambda x: seen.append(state.value is names.NO_TRACE) or x)(jnp.ones(2))
    assert seen == [False]


def test_is_staging():
    assert not names.is_staging()
    seen = []

    def note(x):
        seen.append(names.is_staging())
        return x

    jax.grad(note)(1.0)
    jax.vmap(note)(jnp.ones(2))
    assert seen == [False, False]
    jax.make_jaxpr(note)(1.0)
    jax.jit(lambda x: jax.vmap(jax.grad(note))(x))(jnp.ones(2))
    assert seen == [False, False, True, True]


def test_loop_input():
    seen = []

    def note(c):
        seen.append(names.loop_input())
        return c

    def f(x):
        note(x)
        jax.lax.scan(lambda c, big: (jax.vmap(note)(c[None])[0], None), x, jnp.ones((2, 3)))
        jax.jit(note)(x)
        return x

    jax.make_jaxpr(f)(1.0)
    outside, inside, in_jit = seen[0], seen[1:-1], seen[-1]
    assert outside is None
    assert in_jit is None
    assert inside
    assert all(value.shape == () for value in inside)


def test_a_permitted_effect_survives_everything():
    class Kept(names.Effect):
        pass

    names.permit_effect(Kept)
    kept = names.Primitive("kept_for_a_test")
    kept.def_impl(lambda x: x)
    kept.def_effectful_abstract_eval(lambda aval: (aval, {Kept()}))
    mlir.register_lowering(kept, lambda context, x: [x])
    ad.primitive_jvps[kept] = lambda primals, tangents: (kept.bind(primals[0]), tangents[0])
    batching.fancy_primitive_batchers[kept] = lambda axis, xs, dims: (kept.bind(*xs), dims[0])

    def f(x):
        kept.bind(x * 2)
        return jnp.sin(x)

    def scanned(x):
        return jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]

    def branched(x):
        return jax.lax.cond(x > 0, f, jnp.cos, x)

    for g, x in (
        (f, 1.0),
        (jax.jit(f), 1.0),
        (jax.checkpoint(f), 1.0),
        (scanned, 1.0),
        (branched, 1.0),
        (jax.vmap(f), jnp.ones(2)),
    ):
        for function in (g, jax.grad(lambda x, g=g: jnp.sum(g(x)))):
            assert "kept_for_a_test" in str(jax.make_jaxpr(function)(x))
    assert jax.jit(f)(0.0) == 0.0


@pytest.mark.parametrize("name", ["make_user_context", "shard_map", "typeof"])
def test_public_names_we_rely_on(name):
    assert hasattr(jax, name)


def test_batch_sizes_behind_tracers():
    seen = []

    def look(x, y):
        seen.append(names.hidden_batch_size([x, y]))
        return x * y

    x = jnp.ones((2, 3))
    jax.vmap(jax.vmap(look, (0, None)), (0, None))(x, 1.0)
    jax.jit(jax.vmap(jax.grad(look), (0, None)))(x[0], 1.0)
    jax.vmap(jax.jit(look))(x, x)
    look(x, 1.0)
    assert seen == [6, 3, 1, 1]


def test_the_state_of_tracing():
    seen = []

    def function(x):
        seen.extend((names.current_trace(), names.current_trace()))
        return x

    jax.jit(function)(1.0)
    assert seen[0] == seen[1] != names.current_trace()


def test_callbacks_are_told_by_name():
    def function(x):
        jax.debug.callback(print)
        shape = jax.ShapeDtypeStruct((), x.dtype)
        x = jax.pure_callback(lambda x: x, shape, x)
        return jax.experimental.io_callback(lambda x: x, shape, x)

    assert {eqn.primitive.name for eqn in equations(function, 1.0)} <= names.CALLBACKS


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable references")
def test_references_are_told_from_arrays():
    made, *_ = equations(lambda x: jax.new_ref(x)[...], 1.0)
    assert [names.is_reference(atom.aval) for atom in (*made.invars, *made.outvars)] == [
        False,
        True,
    ]


def test_double_precision_for_a_while():
    with names.enable_x64(True):
        assert jnp.ones(1).dtype == jnp.float64
    with names.enable_x64(False):
        assert jnp.ones(1).dtype == jnp.float32


def test_programs_are_kept_per_capture_context():
    seen = []

    @jax.jit
    def traced(x):
        seen.append(names.capture_context.value)
        return x

    traced(1.0)
    with names.capture_context("here"):
        traced(1.0)
        traced(1.0)
    traced(1.0)
    assert seen == [None, "here"]


def test_dead_code_of_a_primitive():
    """Of the two results the first is dropped when only the second is used, with its operand."""
    pair = names.Primitive("pair_for_a_test")
    pair.multiple_results = True
    pair.def_abstract_eval(lambda x, y: [x, y])
    asked = []

    def rule(used, eqn):
        asked.append(used)
        return used, eqn if any(used) else None

    names.register_dead_code_rule(pair, rule)
    program = jax.make_jaxpr(lambda x, y: pair.bind(jnp.sin(x), jnp.cos(y))[1])(1.0, 2.0)
    kept, used = partial_eval.dce_jaxpr(program.jaxpr, [True])
    assert asked == [[False, True]]
    assert [eqn.primitive.name for eqn in kept.eqns] == ["cos", "pair_for_a_test"]
    assert used == [False, True]

"""A random program of parameter updates under random transformations equals the same program in pure JAX.

Programs are data. `run_tracked` interprets one with parameters and the transformations of
`chainrule.stateful`; `run_pure` interprets it with plain `jax`, threading every value and the random key by
hand. Both see three parameters through four references, two of which are the same parameter.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import chainrule.stateful as cs

LANES = 3


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """These programs run once: the time goes into compiling them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


REFERENCES = (0, 1, 2, 1)

index = st.integers(0, len(REFERENCES) - 1)
small = st.sampled_from([-0.5, 0.25, 0.5, 1.0])
leaf = st.one_of(
    st.tuples(st.just("affine"), index, small, small),
    st.tuples(st.just("mix"), index, index),
    st.tuples(st.just("read_input"), index),
    st.tuples(st.just("noise"), index),
)
WRAPPERS = ("jit", "grad", "value_and_grad", "scan", "while", "cond", "switch", "checkpoint",
            "jvp", "vjp", "linearize", "vmap")  # fmt: skip


def nested(children):
    program = st.lists(children, min_size=1, max_size=3)
    return st.tuples(st.sampled_from(WRAPPERS), program)


programs = st.lists(st.recursive(leaf, nested, max_leaves=6), min_size=1, max_size=3)


class Pair(cs.Module):
    def __init__(self, first, second):
        self.first = first
        self.second = second


def make_model(values):
    params = [cs.Param(value) for value in values]
    refs = [params[i] for i in REFERENCES]
    return params, Pair(Pair(refs[0], refs[1]), [refs[2], refs[3]])


def references(model):
    return [model.first.first, model.first.second, *model.second]


REVERSE = ("grad", "value_and_grad", "vjp")


def allowed(program, outside=()):
    """JAX cannot reverse a `while_loop`, and a second `vmap` would need a second axis: others instead."""
    fitted = []
    for op in program:
        if len(op) != 2 or not isinstance(op[1], list):
            fitted.append(op)
            continue
        name, inner = op
        if name == "while" and any(around in REVERSE for around in outside):
            name = "scan"
        if name == "vmap" and "vmap" in outside:
            name = "jit"
        fitted.append((name, allowed(inner, (*outside, name))))
    return fitted


def run_tracked(program, x, *, model):
    out = x
    for op in program:
        refs = references(model)
        match op:
            case ("affine", i, a, b):
                refs[i].set(a * refs[i] + b)
            case ("mix", i, j):
                refs[i].set(0.5 * refs[i] + 0.25 * refs[j])
            case ("read_input", i):
                refs[i] += 0.5 * x
            case ("noise", i):
                refs[i] += jax.random.uniform(cs.RKG())
            case (name, inner):

                def function(x, *, model, inner=inner):
                    return run_tracked(inner, x, model=model)

                out = out + tracked_wrapper(name, function, x, model)
        out = out + 0.1 * sum(ref.get() for ref in references(model))
    return out


def tracked_wrapper(name, f, x, model):
    scalar = lambda x, *, model: jnp.sum(f(x, model=model))  # noqa: E731
    match name:
        case "jit":
            return cs.jit(f)(x, model=model)
        case "grad":
            grads = cs.grad(scalar, kwargs_mask=True)(x, model=model)
            return sum(grads["model"].values())
        case "value_and_grad":
            value, (gx, gp) = cs.value_and_grad(scalar, argnums=0, kwargs_mask={"model": cs.Param})(
                x, model=model
            )
            return 0.1 * value + gx + sum(gp["model"].values())
        case "scan":
            body = lambda c, s, *, model: (c + s * f(x, model=model), c)  # noqa: E731
            carry, ys = cs.scan(body, x, jnp.array([0.5, 1.0]), model=model)
            return carry + ys[1]
        case "while":

            def go_on(c, *, model):
                return c[0] < 2

            return cs.while_loop(
                go_on,
                lambda c, *, model: (c[0] + 1, 0.5 * f(c[1], model=model)),
                (0, x),
                model=model,
            )[1]
        case "cond":
            return cs.cond(jnp.sum(x) > 0.3, f, lambda x, *, model: 2.0 * x, x, model=model)
        case "switch":
            branches = [lambda x, *, model: 2.0 * x, f]
            return cs.switch((jnp.sum(x) < 9).astype(int), branches, x, model=model)
        case "checkpoint":
            return cs.checkpoint(f)(x, model=model)
        case "jvp":
            value, tangent = cs.jvp(f, (x,), (jnp.ones_like(x),), model=model)
            return value + tangent
        case "vjp":
            value, pull = cs.vjp(f, x, model=model)
            return value + pull(jnp.ones_like(value))[0]
        case "linearize":
            value, push = cs.linearize(f, x, model=model)
            return value + push(jnp.ones_like(x))
        case "vmap":
            return cs.vmap(f, kwargs_mask={"model": 0})(x, model=model)


def run_pure(program, x, state):
    """`state` is `(values, key)`; returns `(out, state)`."""
    out = x
    for op in program:
        values, key = state
        match op:
            case ("affine", i, a, b):
                values = replace(values, i, a * at(values, i) + b)
            case ("mix", i, j):
                values = replace(values, i, 0.5 * at(values, i) + 0.25 * at(values, j))
            case ("read_input", i):
                values = replace(values, i, at(values, i) + 0.5 * x)
            case ("noise", i):
                key, drawn = jax.random.split(key)
                values = replace(values, i, at(values, i) + jax.random.uniform(drawn))
            case (name, inner):

                def function(x, state, inner=inner):
                    return run_pure(inner, x, state)

                more, (values, key) = pure_wrapper(name, function, x, (values, key))
                out = out + more
        state = values, key
        out = out + 0.1 * sum(at(values, i) for i in range(len(REFERENCES)))
    return out, state


def at(values, i):
    return values[REFERENCES[i]]


def replace(values, i, value):
    return tuple(value if j == REFERENCES[i] else old for j, old in enumerate(values))


def pure_wrapper(name, f, x, state):
    match name:
        case "jit":
            return jax.jit(f)(x, state)
        case "grad" | "value_and_grad":

            def scalar(x, values):
                out, state_after = f(x, (values, state[1]))
                return jnp.sum(out), state_after

            (value, after), (gx, gp) = jax.value_and_grad(scalar, (0, 1), has_aux=True)(x, state[0])
            both = 0.1 * value + gx + sum(gp)
            return (sum(gp) if name == "grad" else both), after
        case "scan":

            def body(carry, s):
                c, state = carry
                out, state = f(x, state)
                return (c + s * out, state), c

            (carry, after), ys = jax.lax.scan(body, (x, state), jnp.array([0.5, 1.0]))
            return carry + ys[1], after
        case "while":

            def step(carry):
                i, c, state = carry
                out, state = f(c, state)
                return i + 1, 0.5 * out, state

            _, out, after = jax.lax.while_loop(lambda carry: carry[0] < 2, step, (0, x, state))
            return out, after
        case "cond":
            return jax.lax.cond(jnp.sum(x) > 0.3, f, lambda x, s: (2.0 * x, s), x, state)
        case "switch":
            return jax.lax.cond(jnp.sum(x) < 9, f, lambda x, s: (2.0 * x, s), x, state)
        case "checkpoint":
            return jax.checkpoint(f)(x, state)
        case "jvp" | "linearize":
            value, tangent, after = jax.jvp(
                lambda x: f(x, state), (x,), (jnp.ones_like(x),), has_aux=True
            )
            return value + tangent, after
        case "vjp":
            value, pull, after = jax.vjp(lambda x: f(x, state), x, has_aux=True)
            return value + pull(jnp.ones_like(value))[0], after
        case "vmap":
            values, key = state
            after_key, lane_key = jax.random.split(key)

            def lane(x, values, i):
                out, (values, last) = f(x, (values, jax.random.fold_in(lane_key, i)))
                return (
                    out,
                    values,
                    jnp.any(
                        jax.random.key_data(last)
                        != jax.random.key_data(jax.random.fold_in(lane_key, i))
                    ),
                )

            out, new, drew = jax.vmap(lane)(x, values, jnp.arange(LANES))
            # The state moves on only if the function can draw at all; lanes agree on that.
            return out, (new, jax.lax.select(jnp.any(drew), after_key, key))


def check(program, seed, outer_jit):
    program = allowed(program)
    values = [jnp.linspace(0.1, 0.7, LANES) * (i + 1) for i in range(3)]
    x = jnp.array([0.3, -0.2, 0.6])
    params, model = make_model(values)
    cs.RKG.seed(seed)
    function = lambda x, *, model: run_tracked(program, x, model=model)  # noqa: E731
    out = (cs.jit(function) if outer_jit else function)(x, model=model)

    expected, (new, key) = jax.jit(lambda x, s: run_pure(program, x, s))(
        x, (tuple(values), jax.random.key(seed))
    )
    np.testing.assert_allclose(out, expected, rtol=2e-4, atol=1e-4)
    for param, value in zip(params, new, strict=True):
        np.testing.assert_allclose(param.get(), value, rtol=2e-4, atol=1e-4)
    assert model.first.second is model.second[1]
    # A branch that may draw counts as drawing for `vmap`, whichever way it goes.
    if not any(op[0] == "vmap" for op in flat(program)):
        assert (cs.RKG.key.get() == jax.random.key_data(key)).all()


@settings(max_examples=12, phases=(Phase.explicit, Phase.generate))
@given(programs, st.integers(0, 3), st.booleans())
def test_equals_hand_threaded_jax(program, seed, outer_jit):
    check(program, seed, outer_jit)


def flat(program):
    for op in program:
        yield op
        if len(op) == 2 and isinstance(op[1], list):
            yield from flat(op[1])


@pytest.mark.parametrize("outer", WRAPPERS)
def test_every_transformation_inside_every_other(outer):
    """The same comparison for all pairs, without leaving it to chance."""
    body = [("mix", 0, 3)]
    check([(outer, [("noise", 0), *((name, body) for name in WRAPPERS)])], 1, True)


@pytest.mark.parametrize("outer", ["jit", "scan", "while", "cond", "vmap"])
def test_random_keys_inside_pairs(outer):
    check(
        [(outer, [(name, [("noise", 3)]) for name in ("jit", "scan", "switch", "vmap")])], 2, True
    )

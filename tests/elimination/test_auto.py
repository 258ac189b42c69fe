"""`method="auto"` is right, and works, wherever `jax.jacrev` or `jax.jacfwd` does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax
from jax.experimental.ode import odeint

from _jaxpr.random_moves import points, programs
from chainrule import ChainruleError
from chainrule.elimination import (
    _linearize,
    _methods,
    explain_jacobian,
    jacobian,
    value_and_jacobian,
)
from chainrule.elimination._methods import list_ways
from chainrule.elimination._work import Work
from chainrule.elimination.internal import trace_function
from chainrule.runtime.jax_recipes import jax_jacobian, jax_sparse_jacobian

U = np.linspace(0.1, 1.0, 100)


def relax(u):
    """A loop with a diagonal Jacobian, for which products are compressed."""
    return lax.scan(lambda v, _: (jnp.sin(v) * u, None), u, None, length=100)[0]


def rows_updated(u):
    update = jax.vmap(lambda row, part, start: lax.dynamic_update_slice(row, part, (start,)))
    starts = jnp.arange(10) + 5
    return update(relax(u).reshape(10, 10), u[:30].reshape(10, 3), starts).ravel()


CLAMPED = {
    "roll by a constant behind a rule": lambda u: jnp.roll(
        relax(u), jax.nn.relu(jnp.array(3.0)).astype(int)
    ),
    "set, clipped": lambda u: relax(u).at[jnp.array([500])].set(2 * u[0], mode="clip"),
    "add, clipped": lambda u: relax(u).at[jnp.array([500])].add(2 * u[0], mode="clip"),
    "mapped dynamic update": rows_updated,
    "index from the input": lambda u: relax(u).at[jnp.argmin(u)].set(u[3]),
}


@pytest.fixture(params=CLAMPED)
def clamped(request, monkeypatch):
    """A function, and a library that proves the pattern of every Jacobian."""
    monkeypatch.setattr(_methods, "_WORTH_DETECTING_S", 0.0)
    return CLAMPED[request.param]


def test_patterns_of_constants_and_clamped_indices_are_right(clamped):
    wanted = jax.jacrev(clamped)(U)
    for found in (
        jax.jit(jacobian(clamped))(U),
        jacobian(clamped, method="compressed")(U),
        jax_jacobian(jax.jit(lambda d: {"y": clamped(d["u"])}), {"u": U}, {"u"}, {"y"})["y"]["u"],
        jax_sparse_jacobian(jax.jit(lambda d: {"y": clamped(d["u"])}), {"u": U}, {"u"}, {"y"})["y"][
            "u"
        ].todense(),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@settings(max_examples=15)
@given(programs(longest=3), points)
def test_random_programs_with_constants_and_indices_outside(program, x):
    wanted = jax.jacfwd(program)(x)
    np.testing.assert_allclose(jax.jit(jacobian(program))(x), wanted, rtol=1e-6, atol=1e-9)
    compressed = jax.jit(jacobian(program, method="compressed"))(x)
    np.testing.assert_allclose(compressed, wanted, rtol=1e-6, atol=1e-9)


def decay(y):
    return odeint(lambda y, t: -y, y, jnp.linspace(0.0, 1.0, 3))


def inner_loop_with_a_rule(x):
    """Only JAX's reverse mode has a way: a loop inside of a function with a rule for cotangents."""
    function = jax.custom_vjp(lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1.0, x))
    function.defvjp(lambda x: (function(x), None), lambda _, u: (2.0 * u,))
    return function(x) * x


def with_references(x):
    reference = jax.new_ref(jnp.zeros_like(x))
    reference[...] = jnp.sin(x)
    return reference[...] * x


WORKS = {
    "tridiagonal eigenvalues": lambda d: jax.scipy.linalg.eigh_tridiagonal(
        d, jnp.ones(d.size - 1), eigvals_only=True
    ),
    "adjoint of an integrator": decay,
    "loop inside of a rule": inner_loop_with_a_rule,
    "constant loop": lambda x: x * lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, 0.0),
    "random numbers": lambda x: x * jax.random.normal(jax.random.key(3), x.shape),
    "reduction with a function": lambda x: lax.reduce(x, 0.0, lambda a, b: a + b, (0,)) * x,
    "convolution": lambda x: lax.conv(x.reshape(1, 1, -1), jnp.ones((1, 1, 3)), (1,), "SAME"),
    "sorting": lambda x: jnp.sort(x.reshape(-1, 2), axis=0) * jnp.argsort(x)[0],
    "while": lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: c * 2, x),
    "no dependence": lambda x: jnp.ones(3),
    "no entries": lambda x: x[:0],
}


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_whatever_jax_can_do(name, wrap, monkeypatch):
    monkeypatch.setattr(_methods, "_WORTH_DETECTING_S", 0.0)
    monkeypatch.setattr(_methods, "_FEW_SWEEPS", 0)
    function, x = WORKS[name], np.linspace(0.5, 1.5, 6)
    sweep = jax.jacfwd if name in ("while", "tridiagonal eigenvalues") else jax.jacrev
    np.testing.assert_allclose(
        wrap(jacobian(function))(x), sweep(function)(x), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("name", [name for name in WORKS if name != "tridiagonal eigenvalues"])
def test_compression_is_right_or_says_why_not(name):
    function, x = WORKS[name], np.linspace(0.5, 1.5, 6)
    if name in ("adjoint of an integrator", "loop inside of a rule"):
        with pytest.raises(ChainruleError, match="custom_vjp") as caught:
            jacobian(function, method="compressed")(x)
        assert caught.value.code == "no_pattern"
        return
    found = jacobian(function, method="compressed")(x)
    np.testing.assert_allclose(found, jax.jacfwd(function)(x), rtol=1e-6, atol=1e-9)


def failing(*args, **kwargs):
    raise IndexError("list index out of range")


STAGES = {
    "graph": (_linearize, "build_graph", "elimination"),
    "search": (_methods, "choose_order", "elimination"),
    "estimate": (_methods, "elimination_work", "elimination"),
    "estimate of a sweep": (_methods, "sweep_work", "elimination"),
    "looking for obstacles": (_methods, "why_no_sweep", "compressed"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_what_fails_is_left_to_jax_with_the_reason(stage, monkeypatch):
    module, name, method = STAGES[stage]
    monkeypatch.setattr(module, name, failing)
    x = U[:3]
    (value, aux), found = value_and_jacobian(lambda x: (jnp.sin(x) * x, 7), has_aux=True)(x)
    np.testing.assert_allclose(found, np.diag(np.cos(x) * x + np.sin(x)), rtol=1e-6)
    np.testing.assert_allclose(value, np.sin(x) * x, rtol=1e-6)
    assert aux == 7
    explained = explain_jacobian(lambda x: jnp.sin(x) * x, x)
    assert explained.chosen in ("jacrev", "jacfwd")
    assert "IndexError: list index out of range" in explained.left_out[method]
    assert "list index out of range" in str(explained)


def test_an_elimination_that_fails_when_it_runs_is_left_to_jax(monkeypatch, caplog):
    monkeypatch.setattr(_methods, "linearize_traced", failing)
    monkeypatch.setattr(_methods, "why_no_sweep", lambda graph, reverse: None)
    x = jnp.ones(40)
    explained = explain_jacobian(lambda x: jnp.sin(x) * x, x)
    assert "IndexError" in explained.left_out["elimination"]
    found = jacobian(lambda x: jnp.sin(x) * x)(x)
    np.testing.assert_allclose(found, jax.jacrev(lambda x: jnp.sin(x) * x)(x), rtol=1e-6)
    assert "list index out of range" in caplog.text


LOOKING = {
    "branch in Python": lambda x: jnp.sin(x) * x if x[0] > 0 else x,
    "count": lambda x: x[: int(jnp.sum(x > 0.5))] ** 2,
    "choose": lambda x: jnp.choose(jnp.array([0, 1]), [x[:2], x[2:4]]),
    "boolean index": lambda x: x[x > 0.5] * 2,
}


@pytest.mark.parametrize("name", LOOKING)
def test_functions_that_look_at_values(name):
    """`jax.jacrev` can differentiate them outside of `jit`."""
    function, x = LOOKING[name], jnp.linspace(0.1, 0.9, 4)
    np.testing.assert_allclose(jacobian(function)(x), jax.jacrev(function)(x))
    (value, aux), found = value_and_jacobian(lambda x: (function(x), "aux"), (0,), has_aux=True)(x)
    np.testing.assert_allclose(value, function(x))
    np.testing.assert_allclose(found[0], jax.jacrev(function)(x))
    assert aux == "aux"
    with pytest.raises((TypeError, IndexError)):
        jax.jit(jacobian(function))(x)


def test_errors_of_the_function_itself_stay_as_they_are():
    ran = []

    def broken(x):
        ran.append(1)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        jacobian(broken)(U)
    assert len(ran) == 1


def test_errors_of_explicit_methods_are_not_hidden(monkeypatch):
    monkeypatch.setattr(_linearize, "build_graph", failing)
    with pytest.raises(IndexError):
        jacobian(jnp.sin, method="elimination")(U)
    with pytest.raises(IndexError):
        jacobian(jnp.sin, sparse=True)(U)
    for method in ("jacrev", "jacfwd", "compressed"):  # which need no graph
        found = jacobian(jnp.sin, method=method)(U)
        np.testing.assert_allclose(found, np.diag(np.cos(U)), rtol=1e-12)


def counted(ran, name):
    """A constant from a callback that says when it runs."""
    return jax.pure_callback(
        lambda: (ran.append(name), np.int32(2))[1], jax.ShapeDtypeStruct((), np.int32)
    )


def calling_back(ran):
    def taken(x):
        jax.debug.callback(lambda: ran.append("taken"))
        return relax(x)

    def not_taken(x):
        jax.debug.callback(lambda: ran.append("not taken"))
        return x * counted(ran, "not taken")

    return lambda x: jnp.roll(lax.cond(x[0] < 9, taken, not_taken, x), counted(ran, "constant"))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("method", ["auto", "compressed", "jacrev"])
def test_callbacks_run_once_and_only_in_the_branch_that_is_taken(method, wrap):
    ran = []
    jax.block_until_ready(wrap(jacobian(calling_back(ran), method=method))(U))
    jax.effects_barrier()
    assert sorted(ran) == ["constant", "taken"]


def test_explanations_run_nothing():
    ran = []
    explained = explain_jacobian(calling_back(ran), U)
    jax.effects_barrier()
    assert ran == []
    assert "callback" in explained.left_out["elimination"]


def plan_of(function, *args, compiled=True):
    traced = trace_function(function, tuple(range(len(args))), args, {})
    return list_ways(traced, compiled=compiled)


@pytest.fixture
def _no_detours(monkeypatch):
    """Searching an order and proving a pattern are failures."""
    monkeypatch.setattr(_methods, "choose_order", lambda *a: pytest.fail("searched"))
    monkeypatch.setattr(_methods, "colour", lambda *a: pytest.fail("looked for a pattern"))


@pytest.mark.usefixtures("_no_detours")
def test_one_row_and_one_column_need_one_product():
    def kernel_sum(x):
        return jnp.exp(-((x[:, None] - x) ** 2)).sum()

    rows = plan_of(kernel_sum, np.ones(2500))
    assert rows.candidates[0].method == "jacrev"
    assert set(rows.left_out) == {"elimination", "compressed"}
    columns = plan_of(lambda t: jnp.cumsum(jnp.sin(t * jnp.arange(5000.0))), 1.0)
    assert columns.candidates[0].method == "jacfwd"
    assert plan_of(lambda x: jnp.sin(x).sum(), np.ones(3), compiled=False).candidates[0].sweeps == 1


@pytest.mark.usefixtures("_no_detours")
@pytest.mark.parametrize("compiled", [True, False])
def test_long_rules_and_loops_are_left_to_sweeps(compiled):
    """A condition number is one row. An integrator is one equation, whose loop only JAX runs as a loop."""
    condition = plan_of(jnp.linalg.cond, np.eye(8) + 0.1, compiled=compiled)
    assert condition.candidates[0].method == "jacrev"

    def final_state(y):
        return odeint(lambda y, t: -jnp.sin(y), y, jnp.linspace(0.0, 1.0, 3))[-1]

    plan = plan_of(final_state, np.linspace(0.1, 1.0, 3), compiled=compiled)
    assert plan.candidates[0].method in ("jacrev", "jacfwd")


def few_of_many(x):
    """Two results of two local Jacobians with 300 × 300 entries each."""
    return jnp.cumprod(x)[:2] * jnp.cumprod(x[::-1])[:2]


def test_large_local_jacobians_are_not_searched(monkeypatch):
    monkeypatch.setattr(_methods, "choose_order", lambda *a: pytest.fail("searched"))
    plan = plan_of(few_of_many, np.ones(300))
    assert "local Jacobians" in plan.left_out["elimination"]
    assert plan.candidates[0].method == "jacrev"


def test_a_way_that_needs_far_more_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(_methods, "_MANY_ENTRIES", 10.0)
    monkeypatch.setattr(_methods, "partials_work", lambda graph: Work())
    plan = plan_of(few_of_many, np.ones(300))
    assert "numbers at once" in plan.left_out["elimination"]
    assert plan.candidates[0].method == "jacrev"


def test_a_kernel_that_takes_minutes_to_compile_is_not_made(caplog):
    caplog.set_level("INFO", logger="chainrule.elimination")
    x = np.linspace(0.0, 1.0, 64).reshape(1, 8, 2, 4)

    def attention(x):
        return jax.nn.dot_product_attention(x, x, x)

    found = jax.jit(jacobian(attention, backend="native"))(x)
    # It computes its softmax in single precision.
    np.testing.assert_allclose(found, jax.jacrev(attention)(x), atol=1e-6)
    assert "scalar operations" in caplog.text


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable references")
def test_patterns_of_mutable_references_are_not_trusted():
    with pytest.raises(ChainruleError) as caught:
        jacobian(with_references, method="compressed")(U)
    assert caught.value.code == "no_pattern"


def test_blocks_of_sparse_recipes_have_the_shape_of_the_output_then_of_the_input():
    function = jax.jit(lambda d: {"y": jnp.sin(d["x"]).sum(axis=0)})
    block = jax_sparse_jacobian(function, {"x": np.ones((3, 4))}, {"x"}, {"y"})["y"]["x"]
    assert block.shape == (4, 3, 4)

"""Which way of computing a Jacobian `auto` takes, and what it goes by."""

import importlib.util
import itertools
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import ChainruleError
from chainrule.elimination import explain_jacobian, find_order, jacobian
from chainrule.elimination._methods import list_ways
from chainrule.elimination._objectives import as_problem, quick_order
from chainrule.elimination._search import _portfolio, quick_search
from chainrule.elimination._work import (
    CPU_PRICES,
    GPU_PRICES,
    Work,
    elimination_work,
    prices,
    sweep_work,
)
from chainrule.elimination.examples import TASKS
from chainrule.elimination.internal import (
    choose_order,
    count_operations,
    trace_function,
    work_of_program,
)

V = np.array([0.3, -0.7, 1.2])
needs_llvmlite = pytest.mark.skipif(
    importlib.util.find_spec("llvmlite") is None, reason="the extra `native` is not installed"
)


def long_loop(x):
    """Every entry goes its own way, a hundred times: the Jacobian is diagonal."""
    return jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=100)[0]


def traced(function, *arguments):
    return trace_function(function, tuple(range(len(arguments))), arguments, {})


def test_compressed_jacobian_of_a_tree():
    dtype = np.float32

    def function(a, b):
        return {"s": jnp.sin(a) * b["x"], "sum": a[1:] - a[:-1], "n": jnp.argmax(a), "k": b["y"]}

    arguments = V.astype(dtype), {"x": dtype(2.0), "y": np.ones((2, 2), dtype)}
    found = jax.jit(jacobian(function, (0, 1), method="compressed"))(*arguments)
    wanted = jacobian(function, (0, 1), method="jacrev")(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)
    assert jax.tree.map(lambda a: a.dtype, found) == jax.tree.map(lambda a: a.dtype, wanted)


def test_auto_compresses_a_long_loop_with_a_sparse_jacobian():
    x = np.linspace(0.1, 1.0, 400)
    explained = explain_jacobian(long_loop, x)
    assert explained.chosen == "compressed"
    assert explained.candidates[0].sweeps == 1
    found = jax.jit(jacobian(long_loop))(x)
    diagonal = jax.jvp(long_loop, (x,), (np.ones_like(x),))[1]
    np.testing.assert_allclose(found, np.diag(diagonal), rtol=1e-10)


def test_patterns_follow_the_constants_of_a_function():
    """Two functions with the same equations: what they read is in their constants."""

    def reading(index):
        return lambda x: x[index] * 2

    for places in ([0, 1, 2, 3], [3, 1, 0, 2]):
        found = jacobian(reading(jnp.array(places)), method="compressed")(np.ones(4))
        np.testing.assert_array_equal(found, 2 * np.eye(4)[places])


def test_patterns_follow_the_rules_of_a_function():
    """Derivatives by a rule have the pattern of the rule, also inside a loop."""

    def ruled(tangent_of):
        function = jax.custom_jvp(jnp.floor)
        function.defjvp(lambda x, t: (function(*x), tangent_of(*t)))
        return function

    for tangent_of, wanted in ((lambda t: t, np.eye(4)), (lambda t: t[::-1], np.eye(4)[::-1])):
        function = ruled(tangent_of)
        found = jacobian(function, method="compressed")(np.full(4, 0.3))
        np.testing.assert_array_equal(found, wanted)

        def loop(x, function=function):
            return jax.lax.scan(lambda c, _: (2 * function(c), None), x, None, length=101)[0]

        found = jax.jit(jacobian(loop, method="compressed"))(np.full(4, 0.3))
        np.testing.assert_array_equal(found, 2.0**101 * wanted)


def test_rules_for_cotangents_have_no_pattern():
    function = jax.custom_vjp(jnp.floor)
    function.defvjp(lambda x: (function(x), None), lambda _, c: (3 * c,))
    with pytest.raises(ChainruleError) as caught:
        jacobian(function, method="compressed")(V)
    assert caught.value.code == "no_pattern"
    assert "compressed" not in {c.method for c in explain_jacobian(function, V).candidates}


def test_compression_of_a_function_that_closes_over_traced_values():
    found = jax.jit(lambda y: jacobian(lambda x: x * y, method="compressed")(V))(2.0)
    np.testing.assert_array_equal(found, 2.0 * np.eye(3))


@pytest.mark.parametrize(("n", "backends"), [(30, {"xla", "native"}), (40, {"xla"})])
def test_no_kernel_that_takes_seconds_to_compile_is_chosen(n, backends):
    explained = explain_jacobian(lambda x: jnp.sin(x) * x, np.ones(n))
    assert {candidate.backend for candidate in explained.candidates} == backends


@pytest.mark.parametrize("name", ["method", "backend"])
def test_unknown_names(name):
    with pytest.raises(ChainruleError) as caught:
        jacobian(jnp.sin, **{name: "abacus"})
    assert caught.value.code == f"unknown_{name}"


@needs_llvmlite
@pytest.mark.parametrize("task", TASKS[:4], ids=lambda task: task.name)
def test_auto_makes_a_kernel_of_mapped_scalar_functions(task):
    arguments = task.arguments()
    chosen = []

    def choose(*values):
        here = traced(task.function, *values)
        chosen.append(list_ways(here, compiled=True).candidates[0].name)
        return values[0]

    jax.vmap(choose)(*(jnp.full(512, value) for value in arguments))
    assert chosen == ["elimination (native)"]


@needs_llvmlite
def test_a_kernel_may_close_over_traced_values_and_read_arrays_of_different_sizes():
    def function(w, x, y):
        return jacobian(lambda w, x: jnp.tanh(w @ x) * y, (0, 1), backend="native")(w, x)

    w, x = np.linspace(0.0, 1.0, 6).reshape(2, 3), V
    found = jax.jit(jax.vmap(function, (None, None, 0)))(w, x, np.array([1.0, 2.0]))
    for k, y in enumerate((1.0, 2.0)):
        wanted = jax.jacrev(lambda w, x, y=y: jnp.tanh(w @ x) * y, (0, 1))(w, x)
        for block, reference in zip(found, wanted, strict=True):
            np.testing.assert_allclose(block[k], reference, rtol=1e-10)


@needs_llvmlite
@pytest.mark.parametrize("batch", [1, 37])
def test_constant_results_of_a_kernel(batch):
    def function(x, y):
        return 3.0 * x, x * y, y, jnp.stack([x, 2.0 * y])

    arguments = np.linspace(0.5, 1.0, batch), np.linspace(-1.0, 1.0, batch)
    found = jax.jit(jax.vmap(jacobian(function, (0, 1), backend="native")))(*arguments)
    wanted = jax.vmap(jax.jacfwd(function, (0, 1)))(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, wanted)


def test_methods_that_jax_cannot_do_are_no_candidates():
    def pulled_only(x):
        rule = jax.custom_vjp(lambda x: jnp.sin(x))
        rule.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
        return rule(x)

    def looped(x):
        return jax.lax.while_loop(lambda y: jnp.all(y < 10.0), lambda y: 2.0 * y, x)

    methods = {c.method for c in explain_jacobian(pulled_only, V).candidates}
    assert "jacfwd" not in methods
    methods = {c.method for c in explain_jacobian(looped, np.abs(V)).candidates}
    assert "jacrev" not in methods
    np.testing.assert_allclose(jacobian(pulled_only)(V), np.diag(np.cos(V)), rtol=1e-12)


def test_asking_a_component_costs_a_call():
    def function(x):
        shape = jax.ShapeDtypeStruct((3,), x.dtype)
        return jnp.sin(jax.pure_callback(np.sin, shape, x) * x)

    graph = traced(function, V).graph
    once = work_of_program(graph.program)
    assert once.calls == 1
    assert sweep_work(graph, 5, reverse=True).calls == 6
    assert (
        elimination_work(graph, graph.required).calls == 1 + 3
    )  # the value, and a product per element
    assert CPU_PRICES.seconds(once) > 100 * CPU_PRICES.seconds(Work(arithmetic=1000))


def test_work_of_known_programs():
    def product(a, b):
        return jnp.sin(a @ b)

    program = traced(product, np.ones((4, 5)), np.ones((5, 6))).graph.program
    work = work_of_program(program)
    assert (work.contraction, work.transcendental, work.kernels) == (4 * 5 * 6, 24, 1)
    assert work.times(3).contraction == 3 * 120
    assert work.operations == 144


def test_prices_are_constants_of_the_backend(monkeypatch):
    for backend, wanted in (("cpu", CPU_PRICES), ("gpu", GPU_PRICES), ("tpu", GPU_PRICES)):
        monkeypatch.setattr(jax, "default_backend", lambda name=backend: name)
        assert prices() is wanted


def test_plain_calls_write_nothing(tmp_path):
    """Eager, jitted, with a kernel and with a pattern: the home folder stays empty."""
    code = """
import jax, jax.numpy as jnp
from chainrule.elimination import explain_jacobian, hessian, jacobian
from chainrule.elimination.examples import robot_arm_6dof

x = jnp.linspace(0.1, 1.0, 400)
jacobian(lambda x: jnp.sin(x) * x)(x[:3])
jax.jit(jax.vmap(jacobian(robot_arm_6dof, (0, 1, 2))))(*[x] * 6)
jax.jit(jax.vmap(jacobian(robot_arm_6dof, (0, 1, 2), backend="native")))(*[x] * 6)
jax.jit(jacobian(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, 100)[0]))(x)
hessian(lambda x: jnp.sin(x).sum())(x[:3])
explain_jacobian(lambda x: jnp.sin(x) * x, x[:3])
"""
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    home.mkdir(), scratch.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    environment |= {"HOME": str(home), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)
    assert not list(home.rglob("*"))
    assert not list(scratch.rglob("*"))


@pytest.mark.parametrize("objective", ["time", "memory", "operations"])
def test_objectives_do_not_lose_to_forward_and_reverse(objective):
    def function(x, w):
        return jnp.tanh(w @ (w.T @ jnp.sin(x))).sum() * x[:2]

    arguments = np.ones(4), np.ones((4, 2))
    found = find_order(function, *arguments, objective=objective, budget_s=0.3)
    graph = traced(function, *arguments).graph
    for given in ("forward", "reverse"):
        vertices = choose_order(graph, given)
        if objective == "time":
            work = elimination_work(graph, vertices)
            best = elimination_work(graph, found.vertices)
            assert CPU_PRICES.seconds(best) <= CPU_PRICES.seconds(work) * (1 + 1e-9)
    reference = jax.jacrev(function, (0, 1))(*arguments)
    blocks = jacobian(function, (0, 1), order=found)(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), blocks, reference)


def test_large_graphs_of_arrays_are_searched():
    def deep(x, w):
        for _ in range(25):
            x = jnp.tanh(w @ x + 0.1 * x) * jnp.sum(x)
        return x[:2]

    graph = traced(deep, np.ones(3), np.ones((3, 3))).graph
    assert len(graph.required) > 120
    order = choose_order(graph, "auto")
    assert sorted(order) == list(graph.required)
    reverse = count_operations(graph, choose_order(graph, "reverse"))
    assert count_operations(graph, order).nontrivial <= reverse.nontrivial


def test_auto_finds_the_same_order_however_fast_the_machine_is(monkeypatch):
    """The search counts its work: a clock that jumps ahead whenever it is looked at changes nothing."""
    task = TASKS[0]
    graph = traced(task.function, *task.arguments()).graph
    order = quick_order(graph)
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert quick_order(graph) == order
    costs = [
        count_operations(graph, choose_order(graph, name)).nontrivial for name in ("fwd", "rev")
    ]
    assert count_operations(graph, order).nontrivial < 0.9 * min(costs)


def test_auto_does_not_take_orders_that_were_found_elsewhere():
    task = TASKS[0]
    graph = traced(task.function, *task.arguments()).graph
    before = choose_order(graph, "auto")
    find_order(task.function, *task.arguments(), objective="nontrivial", budget_s=0.3, seed=3)
    assert choose_order(graph, "auto") == before


def test_a_quick_search_without_room_gives_the_safer_direction(monkeypatch):
    task = TASKS[0]
    problem, _ = as_problem(traced(task.function, *task.arguments()).graph, "nontrivial")
    monkeypatch.setattr(_portfolio, "_MOST_WORK", 0)
    forward = list(problem.eliminable)
    assert quick_search(problem, reverse_first=False) == forward
    assert quick_search(problem, reverse_first=True) == forward[::-1]


def test_a_search_without_time_gives_the_safer_direction():
    def function(x):
        return jnp.tanh(jnp.cumsum(jnp.sin(x)) * x).sum()

    graph = traced(function, np.ones(4)).graph
    order = find_order(function, np.ones(4), objective="nontrivial", budget_s=0.0)
    assert order.vertices == choose_order(graph, "reverse")


def test_the_recipe_of_components_leaves_the_choice_to_elimination(monkeypatch):
    from chainrule import elimination
    from chainrule.runtime.jax_recipes import jax_jacobian

    asked = []

    def spy(function, **settings):
        asked.append(settings)
        return jacobian(function, **settings)

    monkeypatch.setattr(elimination, "jacobian", spy)
    apply = jax.jit(lambda d: {"y": jnp.sin(d["x"]) * d["scale"]})
    found = jax_jacobian(apply, {"x": V, "scale": 2.0}, {"x"}, {"y"})
    np.testing.assert_allclose(found["y"]["x"], np.diag(2.0 * np.cos(V)), rtol=1e-12)
    assert asked == [{"method": "auto"}]


@needs_llvmlite
def test_no_kernel_hides_a_function_whose_jacobian_is_taken():
    def gradient(x, y):
        return jacobian(lambda x, y: jnp.sin(x * y) * x, (0, 1), order="reverse")(x, y)

    graph = traced(gradient, 0.3, 0.4).graph
    assert "custom_jvp_call" not in {eqn.primitive.name for eqn in graph.program.jaxpr.eqns}
    compiled = jax.make_jaxpr(gradient)(0.3, 0.4)
    assert "custom_jvp_call" in str(compiled)


def test_large_dense_partials_are_said_in_the_log(caplog):
    traced(lambda x: jax.lax.cumprod(x), np.ones(10))
    assert not caplog.records
    traced(lambda x: jax.lax.cumprod(x), np.ones(1001))
    assert "cumprod" in caplog.text
    assert "1002001 entries" in caplog.text

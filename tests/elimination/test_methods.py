"""Choosing between elimination and JAX's own Jacobians, and the backends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

from chainrule import ChainruleError
from chainrule.elimination import (
    _methods,
    explain_jacobian,
    jacobian,
    register_partials,
    value_and_jacobian,
)
from chainrule.elimination._native import NativeUnavailableError
from chainrule.elimination.examples import TASKS

V = np.array([0.3, -0.7, 1.2])


def function(x, y):
    return {"a": jnp.sin(x) * y, "n": jnp.argmax(x), "same": y}


def through_a_long_loop(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=100)[0].sum()


@pytest.mark.parametrize("method", ["auto", "elimination", "jacrev", "jacfwd"])
def test_methods_agree_in_values_and_arrangement(method):
    both = jax.jit(
        value_and_jacobian(
            lambda x, y: (function(x, y), x.sum()), (1, 0), method=method, has_aux=True
        )
    )
    (value, aux), found = both(V, 2.0)
    np.testing.assert_allclose(aux, V.sum())
    np.testing.assert_allclose(value["a"], np.sin(V) * 2)
    np.testing.assert_allclose(found["a"][0], np.sin(V))
    np.testing.assert_allclose(found["a"][1], np.diag(2 * np.cos(V)))
    np.testing.assert_array_equal(found["n"][1], np.zeros(3))
    np.testing.assert_array_equal(found["same"][0], 1.0)


def test_auto_takes_one_reverse_sweep_through_a_long_loop():
    assert explain_jacobian(through_a_long_loop, np.ones(50)).chosen == "jacrev"
    np.testing.assert_allclose(
        jacobian(through_a_long_loop)(V), jax.jacrev(through_a_long_loop)(V), rtol=1e-10
    )


@pytest.mark.parametrize("method", ["jacrev", "jacfwd"])
def test_a_sweep_runs_the_function_as_the_user_wrote_it(method):
    # Calls that are compiled stay so outside of `jit`, and `checkpoint` saves memory.
    def inner(x):
        return jnp.sin(x) * x

    found = str(
        jax.make_jaxpr(jacobian(lambda x: jax.checkpoint(inner)(jax.jit(inner)(x)), method=method))(
            V
        )
    )
    assert "name=inner" in found
    assert "checkpoint" in found or "remat" in found


@pytest.mark.parametrize("task", TASKS[:4], ids=lambda task: task.name)
def test_auto_eliminates_the_benchmark_functions(task):
    arguments = task.arguments()
    found = explain_jacobian(task.function, *arguments, argnums=tuple(range(len(arguments))))
    assert found.chosen == "elimination"


def test_explanations_print_and_measure():
    found = explain_jacobian(lambda x: jnp.sin(x) * x.sum(), V, measure=True)
    assert all(candidate.seconds > 0 for candidate in found.candidates)
    assert "elimination" in str(found)
    assert "µs" in str(found)


def test_explanations_need_shapes_only_and_values_to_measure():
    def function(x):
        return jnp.sin(x) * x

    shape = jax.ShapeDtypeStruct((3,), jnp.bfloat16)
    explained = explain_jacobian(function, shape)
    # No kernel computes in this dtype, so there is none among the ways.
    assert {candidate.backend for candidate in explained.candidates} == {"xla"}
    with pytest.raises(ChainruleError) as caught:
        jax.jit(lambda x: explain_jacobian(function, x, measure=True))(1.0)
    assert caught.value.code == "not_concrete"


def test_a_kernel_that_cannot_be_made_is_not_measured(monkeypatch):
    def refuse(program):
        raise NativeUnavailableError("no")

    assert explain_jacobian(jnp.sin, V).candidates[0].backend == "native"
    monkeypatch.setattr(_methods, "native_function", refuse)
    measured = explain_jacobian(jnp.sin, V, measure=True).candidates
    assert {candidate.backend for candidate in measured} == {"xla"}


def test_native_backend_under_vmap():
    pytest.importorskip("llvmlite")
    task = TASKS[0]
    batch = [np.full(5, value, np.float64) * np.linspace(0.9, 1.1, 5) for value in task.arguments()]
    argnums = tuple(range(len(batch)))
    found = jax.jit(jax.vmap(jacobian(task.function, argnums, backend="native")))(*batch)
    reference = jax.vmap(jax.jacrev(task.function, argnums))(*batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), found, reference)


def test_native_backend_falls_back(caplog):
    caplog.set_level("INFO", logger="chainrule.elimination")
    found = jacobian(jnp.linalg.inv, backend="native")(np.eye(2) * 2)
    np.testing.assert_allclose(found, jax.jacrev(jnp.linalg.inv)(np.eye(2) * 2), atol=1e-12)
    assert "No native kernel" in caplog.text
    assert "None" not in caplog.text  # no line of the user's to name


def test_unknown_backend():
    with pytest.raises(ChainruleError, match="no backend"):
        jacobian(jnp.sin, backend="abacus")(V)


def test_strict_names_the_equations_without_a_rule():
    with pytest.raises(ChainruleError, match="cumprod at") as caught:
        jacobian(lambda x: jax.lax.cumprod(jnp.sin(x)), strict=True)(V)
    assert caught.value.code == "no_rule"
    np.testing.assert_allclose(jacobian(jnp.sin, strict=True)(V), np.diag(np.cos(V)))


def test_registered_partials_of_a_primitive_that_jax_cannot_differentiate():
    twice = Primitive("chainrule_test_twice")
    twice.def_impl(lambda x: 2 * x)
    twice.def_abstract_eval(lambda x: x)
    asked = []

    def partials(params, operands, results, wanted):
        asked.append(wanted)
        return {(0, 0): 2 * jnp.eye(3)}

    register_partials("chainrule_test_twice", partials)
    found = jacobian(lambda x: jnp.sin(twice.bind(x)), method="elimination")(V)
    np.testing.assert_allclose(found, np.diag(2 * np.cos(2 * V)), rtol=1e-12)
    assert asked == [[0]]


def test_explanations_show_themselves_in_a_notebook():
    explained = explain_jacobian(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(100_000))
    shown = explained._repr_html_()
    assert shown.count("<tr>") == 1 + len(explained.candidates)
    assert all(f"<p>{method} is left out: " in shown for method in explained.left_out)
    assert f">{explained.taken} *</td>" in shown

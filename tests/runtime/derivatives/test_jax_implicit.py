import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from chainrule.errors import DefinitionError
from chainrule.runtime.jax_recipes import (
    jax_hessian_vector_product,
    jax_implicit,
    jax_jacobian,
    jax_jvp,
    jax_vjp,
)

MATRIX = np.random.default_rng(0).normal(size=(3, 3)) + 4 * np.eye(3)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def residual(inputs, outputs):
    y = outputs["y"]
    return {"r": MATRIX @ y + 0.1 * y**3 - inputs["b"] * inputs["k"]}


def newton_step(inputs, y):
    slope = MATRIX + jnp.diag(0.3 * y**2)
    return y - jnp.linalg.solve(slope, residual(inputs, {"y": y})["r"])


def solve(inputs):
    """Loops until convergence, which JAX cannot differentiate backwards."""

    def unfinished(carry):
        return jnp.max(jnp.abs(residual(inputs, {"y": carry[0]})["r"])) > 1e-13

    def step(carry):
        return newton_step(inputs, carry[0]), carry[1] + 1

    y, count = jax.lax.while_loop(unfinished, step, (jnp.zeros(3), 0))
    return {"y": y, "iterations": count, "label": inputs["label"]}


def solve_unrolled(inputs):
    y = jnp.zeros(3)
    for _ in range(6):
        y = newton_step(inputs, y)
    return {"y": y}


def own_solvers():
    def slope(outputs):
        return MATRIX + jnp.diag(0.3 * outputs["y"] ** 2)

    return {
        "solve_linear": lambda i, o, right: {"y": jnp.linalg.solve(slope(o), right["r"])},
        "solve_transpose": lambda i, o, right: {"r": jnp.linalg.solve(slope(o).T, right["y"])},
    }


VARIANTS = {
    "direct": dict,
    "iterative": lambda: {"solver": lx.GMRES(rtol=1e-12, atol=1e-12)},
    "own": own_solvers,
}


@pytest.fixture
def inputs():
    return {"b": np.random.default_rng(1).normal(size=3), "k": np.float64(1.5), "label": "test"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_against_closed_form_and_unrolled_solver(inputs, variant):
    function = eqx.filter_jit(jax_implicit(solve, residual, **VARIANTS[variant]()))
    y = solve_unrolled(inputs)["y"]
    slope = MATRIX + np.diag(0.3 * y**2)
    by_b, by_k = np.linalg.solve(slope, 1.5 * np.eye(3)), np.linalg.solve(slope, inputs["b"])
    unrolled = jax.jacfwd(lambda b: solve_unrolled(inputs | {"b": b})["y"])(inputs["b"])
    np.testing.assert_allclose(by_b, unrolled, atol=1e-12)
    for mode in ("forward", "reverse"):
        found = jax_jacobian(function, inputs, {"b", "k"}, {"y"}, mode=mode)
        np.testing.assert_allclose(found["y"]["b"], by_b, atol=1e-10)
        np.testing.assert_allclose(found["y"]["k"], by_k, atol=1e-10)


def test_other_outputs_come_along(inputs):
    function = eqx.filter_jit(jax_implicit(solve, residual))
    outputs = function(inputs)
    assert outputs["label"] == "test"
    assert outputs["iterations"] >= 2
    pulled = jax_vjp(
        function, inputs, {"b"}, {"y", "iterations"}, {"y": np.ones(3), "iterations": 0}
    )
    pushed = jax_jvp(function, inputs, {"b"}, {"y", "iterations"}, {"b": np.ones(3)})
    np.testing.assert_allclose(np.sum(pulled["b"]), np.sum(pushed["y"]), rtol=1e-12)
    assert pushed["iterations"] == 0


def test_second_derivatives(inputs):
    function = eqx.filter_jit(jax_implicit(solve, residual))
    unrolled = eqx.filter_jit(solve_unrolled)
    arguments = (inputs, {"b", "k"}, {"y"}, {"y": np.array([1.0, -1.0, 2.0])},
                 {"b": np.ones(3), "k": np.float64(0.5)})  # fmt: skip
    found = jax_hessian_vector_product(function, *arguments)
    expected = jax_hessian_vector_product(unrolled, *arguments)
    for path in ("b", "k"):
        np.testing.assert_allclose(found[path], expected[path], atol=1e-10)


def test_vmap_and_plain_grad(inputs):
    function = jax_implicit(solve, residual)
    rows = np.random.default_rng(3).normal(size=(4, 3))

    def loss(b):
        return jnp.sum(function(inputs | {"b": b})["y"] ** 2)

    def reference(b):
        return jnp.sum(solve_unrolled(inputs | {"b": b})["y"] ** 2)

    found, expected = (jax.jit(jax.vmap(jax.grad(f)))(rows) for f in (loss, reference))
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_residual_must_determine_the_outputs(inputs):
    function = jax_implicit(solve, lambda i, o: {"r": residual(i, o)["r"][:2]})
    with pytest.raises(DefinitionError) as caught:
        jax_vjp(eqx.filter_jit(function), inputs, {"b"}, {"y"}, {"y": np.ones(3)})
    assert caught.value.code == "residual_size_mismatch"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_jacobian_by_default(inputs, variant):
    """Its rule solves for the tangent with operations that have rules of their own."""
    function = eqx.filter_jit(jax_implicit(solve, residual, **VARIANTS[variant]()))
    expected = jax.jacfwd(lambda b: solve_unrolled(inputs | {"b": b})["y"])(inputs["b"])
    found = jax_jacobian(function, inputs, {"b"}, {"y"})
    np.testing.assert_allclose(found["y"]["b"], expected, atol=1e-10)

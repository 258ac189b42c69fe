"""Coupled components: Sellar's problem and a thermo-elastic pair, against closed forms and OpenMDAO."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import (
    ComponentError,
    InputError,
    apply_component,
    component_errors,
    fixed_point,
    minimize,
)
from chainrule.runtime import Array, Differentiable, Float64, component

Scalar = Differentiable[Float64]
Pair = Differentiable[Array[(2,), Float64]]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(True):
        yield


@component(derivatives="finite")
def first(z: Pair, x: Scalar, y2: Scalar) -> Scalar:
    return z[0] ** 2 + z[1] + x - 0.2 * y2


@component(framework="jax")
def second(z: Pair, y1: Scalar) -> Scalar:
    return jnp.sqrt(jnp.abs(y1)) + z[0] + z[1]


def disciplines(y, z, x):
    return {
        "y1": apply_component(first, {"z": z, "x": x, "y2": y["y2"]})["result"],
        "y2": apply_component(second, {"z": z, "y1": y["y1"]})["result"],
    }


START = {"y1": 1.0, "y2": 1.0}
Z = np.array([5.0, 2.0])


def test_sellar_and_its_gradient():
    def objective(z, x):
        y = fixed_point(disciplines, START, z, x).x
        return x**2 + z[1] + y["y1"] + jnp.exp(-y["y2"])

    found = fixed_point(disciplines, START, Z, 1.0)
    # The numbers of OpenMDAO for the same problem.
    np.testing.assert_allclose(
        [found.x["y1"], found.x["y2"]], [25.58830237, 12.05848815], rtol=1e-8
    )
    assert found.residual < 1e-10
    assert 1 < found.steps < 20
    value, (dz, dx) = jax.jit(jax.value_and_grad(objective, (0, 1)))(jnp.asarray(Z), 1.0)
    np.testing.assert_allclose(value, 28.58830816, rtol=1e-8)
    np.testing.assert_allclose(dz, [9.61001056, 1.78448534], rtol=1e-6)
    np.testing.assert_allclose(dx, 2.98061391, rtol=1e-6)


def rod(x, load):
    """Temperatures that depend on the stress, and stress that depends on the temperatures: a linear pair."""
    conduct = jnp.array([[0.5, 0.2], [0.1, 0.4]])
    return {"temperature": load + conduct @ x["stress"], "stress": 0.3 * x["temperature"] - load}


@pytest.mark.parametrize(
    "options", [{}, {"method": "iterate"}, {"method": "iterate", "damping": 0.7}]
)
def test_a_thermo_elastic_pair_has_its_closed_form(options):
    load = jnp.array([1.0, 2.0])
    start = {"temperature": np.zeros(2), "stress": np.zeros(2)}

    def solve(load):
        return fixed_point(rod, start, load, **options).x["stress"]

    # s = 0.3 (l + C s) - l  ⇒  s = (I - 0.3 C)⁻¹ (-0.7 l)
    matrix = -0.7 * np.linalg.inv(np.eye(2) - 0.3 * np.array([[0.5, 0.2], [0.1, 0.4]]))
    np.testing.assert_allclose(solve(load), matrix @ load, rtol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.jacrev(solve))(load), matrix, rtol=1e-7)


@component(derivatives="finite")
def heat(stretch: Pair, source: Scalar) -> Pair:
    return source / (1 + stretch)


@component(framework="jax")
def expansion(temperature: Pair) -> Pair:
    return 0.1 * temperature


def test_a_thermo_elastic_pair_of_programs():
    """Heat flows less where the bar has stretched, and it stretches where it is hot: 0.1 t² + t = q."""

    def bar(y, source):
        hot = apply_component(heat, {"stretch": y["stretch"], "source": source})["result"]
        long = apply_component(expansion, {"temperature": y["temperature"]})["result"]
        return {"temperature": hot, "stretch": long}

    def temperature(source):
        start = {"temperature": np.zeros(2), "stretch": np.zeros(2)}
        return fixed_point(bar, start, source).x["temperature"][0]

    sources = jnp.array([1.0, 2.0, 3.0])
    exact = -5 + jnp.sqrt(25 + 10 * sources)
    np.testing.assert_allclose(jax.vmap(temperature)(sources), exact, rtol=1e-8)
    slope = jax.jit(jax.grad(temperature))(2.0)
    np.testing.assert_allclose(slope, 1 / (1 + 0.2 * exact[1]), rtol=1e-6)


def test_a_large_state_is_solved_with_products():
    n = 300
    weights = jnp.linspace(0.1, 0.5, n)

    def solve(p):
        return jnp.sum(fixed_point(lambda x, p: p + weights * jnp.roll(x, 1), jnp.zeros(n), p).x)

    matrix = np.eye(n) - np.diag(weights) @ np.roll(np.eye(n), -1, axis=1)
    value, gradient = jax.jit(jax.value_and_grad(solve))(jnp.ones(n))
    expected = np.linalg.solve(matrix, np.ones(n))
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-7)
    np.testing.assert_allclose(gradient, np.linalg.solve(matrix.T, np.ones(n)), rtol=1e-6)


def shifted(p):
    """One element of a state whose linear system is a shift, which GMRES with few vectors cannot solve."""
    x = fixed_point(lambda x, p: x + p - jnp.roll(x, 1), jnp.ones(300), p).x
    return x[7]


def forward(f):
    return lambda p: jax.jvp(f, (p,), (jnp.eye(300)[8],))


@pytest.mark.parametrize("transformation", [jax.grad, forward])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_derivative_that_is_not_solved_is_an_error(transformation, compiled):
    program = transformation(jax.jit(shifted) if compiled else shifted)
    with pytest.raises(Exception, match="GMRES did not solve"):
        jax.block_until_ready(program(jnp.ones(300)))
    with pytest.raises(ComponentError) as caught, component_errors():
        jax.block_until_ready(program(jnp.ones(300)))
    assert caught.value.code == "not_converged"


def test_second_derivatives_of_a_large_state():
    # x_i = p cos(x_i) / 2 for every i, so all elements have the derivatives of one.
    def solve(n):
        def f(x, p):
            return p * jnp.cos(x) / 2 + 0.1 * (jnp.roll(x, 1) - x)

        return lambda p: fixed_point(f, jnp.full(n, 0.4), p).x.mean()

    points = jnp.array([0.7, 1.0])
    for derivative in (jax.grad, jax.jacfwd, lambda f: jax.grad(jax.grad(f)), jax.hessian):
        large, small = (jax.vmap(derivative(solve(n)))(points) for n in (300, 3))
        np.testing.assert_allclose(large, small, rtol=1e-7)


def test_second_derivatives_and_vmap():
    def solve(p):
        return fixed_point(lambda x: jnp.cos(p * x), 0.5 + 0 * p).x  # closes over p

    @jax.jit
    @jnp.vectorize
    def slope(p):
        # x = cos(p x)  ⇒  x' = -(x + p x') sin(p x)
        x = solve(p)
        return -x * jnp.sin(p * x) / (1 + p * jnp.sin(p * x))

    points = jnp.array([0.6, 0.9])
    found = jax.jit(jax.vmap(jax.grad(solve)))(points)
    np.testing.assert_allclose(found, slope(points), rtol=1e-8)
    second = (slope(0.8 + 1e-4) - slope(0.8 - 1e-4)) / 2e-4
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(solve)))(0.8), second, rtol=1e-6)


def test_no_convergence_is_an_error():
    for f in (lambda x: x + 1.0, lambda x: x * jnp.nan):
        with pytest.raises(ComponentError, match="did not converge") as caught:
            fixed_point(f, 1.0, method="iterate", max_steps=20)
        assert caught.value.code == "not_converged"


def grows(x, p):
    return 2 * x + p


def state(p):
    return fixed_point(grows, 1.0, p, method="iterate", max_steps=5).x


@pytest.mark.parametrize(
    ("program", "point"),
    [(state, 1.0), (jax.grad(state), 1.0), (jax.vmap(jax.grad(state)), np.ones(2))],
    ids=["value", "grad", "vmap of grad"],
)
def test_no_convergence_in_a_compiled_program_is_an_error(program, point):
    with pytest.raises(Exception, match="did not converge"):
        jax.block_until_ready(jax.jit(program)(point))


def test_no_convergence_in_a_compiled_program_has_its_code():
    with pytest.raises(ComponentError) as caught, component_errors():
        jax.block_until_ready(jax.jit(jax.grad(state))(1.0))
    assert caught.value.code == "not_converged"
    with pytest.raises(ComponentError) as caught:
        minimize(lambda p: state(p["p"]), {"p": 1.0})
    assert caught.value.code == "not_converged"


def test_a_state_in_two_precisions_is_as_precise_as_the_less_precise_part():
    def f(x):
        return {
            "a": jnp.cos(x["b"]).astype(jnp.float32),
            "b": jnp.cos(x["a"]).astype(jnp.float64),
        }

    found = fixed_point(f, {"a": np.float32(0.5), "b": np.float64(1.0)})
    np.testing.assert_allclose([found.x["a"], found.x["b"]], 0.7390851, rtol=1e-5)


@pytest.mark.parametrize(
    ("f", "x0", "options", "message"),
    [
        (lambda x: {"y": x}, 1.0, {}, "of the form"),
        (lambda x: jnp.ones(3), np.ones(2), {}, r"of shape \[2\]; found \[3\]"),
        (lambda x: np.float64(1) if x > 0 else x, 1.0, {}, "cannot be traced by JAX"),
        (lambda x: x, 1, {}, "Write 1.0 instead"),
        (lambda x: x, 1.0, {"method": "magic"}, "'newton' or 'iterate'"),
        (lambda x: x, 1.0, {"max_steps": 0}, "max_steps to be 1 or more"),
        (lambda x: x, 1.0, {"damping": 0.0}, "damping"),
        (lambda x: x, 1.0, {"tolerance": np.nan}, "tolerance to be a positive number"),
        (lambda x: x, 1.0, {"tolerance": -1.0}, "tolerance to be a positive number"),
    ],
)
def test_bad_input_is_named(f, x0, options, message):
    with pytest.raises(InputError, match=message):
        fixed_point(f, x0, **options)

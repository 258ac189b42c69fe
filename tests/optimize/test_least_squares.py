"""Least squares: parameters of a known curve, by every form of the Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import InputError, from_callable, least_squares
from chainrule.runtime import Array, Differentiable, Float64, component

T = np.linspace(0, 1, 12)
Y = 2 * np.exp(-3 * T)


def residuals(p):
    difference = p["a"] * jnp.exp(-p["k"] * T) - Y
    return {"late": difference[6:], "early": difference[:6]}


@component(derivatives="finite")
def decay(
    a: Differentiable[Float64], k: Differentiable[Float64]
) -> tuple[Differentiable[Array[(12,), Float64]], Differentiable[Float64]]:
    return a * np.exp(-k * T) - Y, a


@pytest.mark.parametrize(
    "options",
    [
        {}, {"jacobian": "sparse"}, {"jacobian": "products"}, {"method": "lm"},
        {"method": "optimistix.LevenbergMarquardt"}, {"bounds": {"k": (0, 5)}},
    ],
    ids=str,
)  # fmt: skip
def test_a_function(options):
    fit = least_squares(residuals, {"a": 1.0, "k": 1.0}, **options)
    assert fit.success, fit.message
    np.testing.assert_allclose([fit.x["a"], fit.x["k"]], [2, 3], rtol=1e-5)
    assert fit.value < 1e-10


@pytest.mark.parametrize("method", ["trf", "optimistix.LevenbergMarquardt"])
def test_programs_are_asked_for_the_products_of_the_plan(method):
    """R³ → R → R⁸: one row of the first program and one column of the second for each Jacobian."""
    asked = []

    def site(name, matrix):
        def jvp(primals, tangents):
            asked.append(("columns", name))
            return matrix @ tangents[0]

        def vjp(primals, cotangent):
            asked.append(("rows", name))
            return (matrix.T @ cotangent,)

        shape = jax.ShapeDtypeStruct(matrix.shape[:1], np.float64)
        return from_callable(lambda x: matrix @ x, jvp=jvp, vjp=vjp, abstract=shape, name=name)

    inner, outer = site("inner", np.array([[1.0, 2.0, 3.0]])), site("outer", np.ones((8, 1)))
    fit = least_squares(lambda x: outer(inner(x) ** 3) - 8.0, np.ones(3) / 4, method=method)
    assert fit.value < 1e-10  # (x₁ + 2 x₂ + 3 x₃)³ = 8
    assert set(asked) == {("rows", "inner"), ("columns", "outer")}
    assert asked.count(("rows", "inner")) == asked.count(("columns", "outer"))


def test_products_apply_a_program_once_per_point():
    applied = []

    def cube(x):
        applied.append(x)
        return x**3

    program = from_callable(
        cube, jvp=lambda primals, tangents: 3 * primals[0] ** 2 * tangents[0], abstract=lambda x: x
    )
    fit = least_squares(lambda x: program(x) - 8.0, np.array([1.5, 2.5]), jacobian="products")
    np.testing.assert_allclose(fit.x, 2.0, rtol=1e-6)
    assert len(applied) == fit.evaluations


def test_a_component_with_chosen_outputs():
    fit = least_squares(decay, {"a": 1.0, "k": 1.0}, residuals=["result_0"])
    np.testing.assert_allclose([fit.x["a"], fit.x["k"]], [2, 3], rtol=1e-5)
    # With the second output as a residual too, `a` is pulled towards zero.
    assert least_squares(decay, {"a": 1.0, "k": 1.0}).x["a"] < 2


@pytest.mark.parametrize("method", ["trf", "dogbox"])
def test_products_with_bounds(method):
    fit = least_squares(
        residuals, {"a": 1.0, "k": 1.0}, bounds={"k": (0, 2.0)}, method=method, jacobian="products"
    )
    assert fit.x["k"] == pytest.approx(2.0, abs=1e-6)


def test_a_solver_of_optimistix_is_followed_stopped_and_restarted(tmp_path):
    file, t = tmp_path / "fit.npz", np.linspace(0, 1, 20)

    def residuals(p):
        return p["a"] * jnp.exp(-p["k"] * t) - 2 * np.exp(-3 * t)

    start, method = {"a": 1.0, "k": 1.0}, "optimistix.LevenbergMarquardt"
    first = least_squares(
        residuals, start, method=method, checkpoint=file, callback=lambda s: s.evaluation == 3
    )
    assert (first.success, first.evaluations) == (False, 3)
    assert first.value == pytest.approx(min(step.value for step in first.history))
    assert first.history[0].value == pytest.approx(0.5 * np.sum(np.square(residuals(start))))
    second = least_squares(residuals, start, method=method, checkpoint=file)
    assert second.success
    assert second.history[3].value == pytest.approx(first.value)
    assert second.x["k"] == pytest.approx(3.0)


def test_residuals_are_real_numbers_and_there_are_some():
    with pytest.raises(InputError, match="found complex128"):
        least_squares(lambda p: p * 1j, np.ones(2))
    with pytest.raises(InputError, match="no residuals"):
        least_squares(lambda p: p[:0], np.ones(2))
    with pytest.raises(InputError, match=r"bounds of x\[0\] are 1 and 1"):
        least_squares(lambda p: p, np.ones(2), bounds={"x": ([1, 0], [1, 2])})


def test_a_bound_is_active():
    fit = least_squares(residuals, {"a": 1.0, "k": 1.0}, bounds={"k": (None, 2.0)})
    assert fit.x["k"] == pytest.approx(2.0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jacobian": "full"}, "'dense', 'sparse' or 'products'"),
        ({"method": "lm", "jacobian": "sparse"}, "dense Jacobian only"),
        ({"method": "lm", "bounds": {"k": (0, 5)}}, "takes no bounds"),
        ({"method": "simplex"}, "There is no method 'simplex'"),
        ({"residuals": ["x"]}, "a function returns its residuals"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        least_squares(residuals, {"a": 1.0, "k": 1.0}, **options)

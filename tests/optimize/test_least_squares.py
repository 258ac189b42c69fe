"""Least squares: parameters of a known curve, by every form of the Jacobian."""

import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import InputError, least_squares
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


def test_a_component_with_chosen_outputs():
    fit = least_squares(decay, {"a": 1.0, "k": 1.0}, residuals=["result_0"])
    np.testing.assert_allclose([fit.x["a"], fit.x["k"]], [2, 3], rtol=1e-5)
    # With the second output as a residual too, `a` is pulled towards zero.
    assert least_squares(decay, {"a": 1.0, "k": 1.0}).x["a"] < 2


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

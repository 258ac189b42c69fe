import numpy as np
import pytest

from chainrule.runtime.derivatives import hvp_from_vjp


def test_hessian_of_a_cubic():
    # φ = u · (x³ + b x²): the Hessian is diag(u (6x + 2b)) in x and 2 u x between x and b.
    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent):
        x, b, u = inputs["a"]["x"], inputs["b"], cotangent["y"]
        full = {"a.x": u * (3 * x**2 + 2 * b * x), "b": np.sum(u * x**2)}
        return {path: full[path] for path in vjp_inputs}

    x, u, v = np.random.default_rng(0).normal(size=(3, 5))
    inputs = {"a": {"x": x}, "b": np.float64(0.3)}
    found = hvp_from_vjp(
        vjp, inputs, {"a.x", "b"}, {"y"}, {"y": u}, {"a.x": v, "b": np.float64(2.0)}
    )
    np.testing.assert_allclose(
        found["a.x"], u * (6 * x + 0.6) * v + 2 * u * x * 2.0, rtol=1e-7, atol=1e-8
    )
    np.testing.assert_allclose(found["b"], np.sum(2 * u * x * v), rtol=1e-7)


def test_a_gradient_that_jumps_is_reported_by_the_name_of_its_input():
    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent):
        return {"b.x": 1.0 + np.floor(inputs["b"]["x"])}

    with pytest.warns(RuntimeWarning, match=r"'\{gradient by b.x\}' by 'b.x' do not converge"):
        hvp_from_vjp(vjp, {"b": {"x": 3.0}}, {"b.x"}, {"y"}, {"y": 1.0}, {"b.x": 1.0})

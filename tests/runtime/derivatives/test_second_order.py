import numpy as np

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

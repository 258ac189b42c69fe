"""A component is a vertex like any other: elimination asks it for its Jacobian, once."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule import apply_component
from chainrule.elimination import jacobian
from chainrule.runtime import load_component

MATRIX = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
SOURCE = """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

MATRIX = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
asked = []


class InputSchema(BaseModel):
    x: Differentiable[Array[(3,), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[(2,), Float64]]
    asked: list[str]


def apply(inputs):
    return {"y": MATRIX @ np.sin(inputs.x), "asked": asked}


def jacobian(inputs, jac_inputs, jac_outputs):
    asked.append("jacobian")
    return {"y": {"x": MATRIX * np.cos(inputs.x)}}


def abstract_eval(abstract_inputs):
    return {"y": {"shape": (2,), "dtype": "float64"}, "asked": []}
"""


def test_elimination_asks_for_the_jacobian_once(tmp_path):
    path = tmp_path / "component.py"
    path.write_text(SOURCE)
    component = load_component(path)

    def function(x):
        y = apply_component(component, {"x": jnp.exp(x)})["y"]
        return jnp.tanh(y) * y[0]

    def plain(x):
        y = MATRIX @ jnp.sin(jnp.exp(x))
        return jnp.tanh(y) * y[0]

    with jax.enable_x64(True):
        x = jnp.array([0.1, 0.2, 0.3])
        found = jacobian(function, method="elimination")(x)
        np.testing.assert_allclose(found, jax.jacfwd(plain)(x), rtol=1e-10)
        assert component.apply({"x": np.zeros(3)})["asked"] == ["jacobian"]
        jitted = jax.jit(jacobian(function, method="elimination", order="reverse"))(x)
        np.testing.assert_allclose(jitted, found, rtol=1e-10)

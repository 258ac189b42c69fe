"""Workers of JAX components remember forward passes when that pays, and say so once."""

import logging
import textwrap

import numpy as np
import pytest

from chainrule.runtime import component
from chainrule.runtime.experimental import set_jax_vjp_cache_size
from chainrule.runtime.internal import reuse_residuals

COMPONENT = """
from chainrule.runtime import Array, Differentiable, Float32, component
import jax.numpy as jnp

Vector = Differentiable[Array[("n",), Float32]]

@component(framework="jax")
def squares(x: Vector) -> Vector:
    return x**2
"""


def test_the_decision_is_logged_once(start_server, tmp_path):
    file = tmp_path / "squares.py"
    file.write_text(textwrap.dedent(COMPONENT))
    log = tmp_path / "worker.log"
    served = start_server(components=f"{file}:squares", log_file=str(log))
    for k in range(3):
        inputs = {"x": [1.0, 2.0 + k]}
        assert served.post("/apply", {"inputs": inputs}).status == 200
        answer = served.post(
            "/vector_jacobian_product",
            {"inputs": inputs, "vjp_inputs": ["x"], "vjp_outputs": ["result"],
             "cotangent_vector": {"result": [[1.0, 1.0], [0.0, 3.0]]}, "batched": True},
        )  # fmt: skip
        x = 2.0 + k
        np.testing.assert_allclose(answer.tree["x"], [[2.0, 2 * x], [0.0, 6 * x]])
    metrics = served.get("/metrics").body.decode()
    counted = 'chainrule_residuals_reuse_total{component="squares",outcome='
    found = {
        word: int(metrics.partition(f'{counted}"{word}"}} ')[2].split()[0])
        for word in ("hit", "miss")
    }
    assert sum(found.values()) == 3
    lines = log.read_text().splitlines()
    assert sum("kept if it pays" in line for line in lines) == 1
    assert sum("VJP residuals are " in line for line in lines) == 1


@pytest.fixture
def cache_off():
    set_jax_vjp_cache_size(0)
    yield
    set_jax_vjp_cache_size(0)


@pytest.mark.usefixtures("cache_off")
def test_an_author_who_set_the_cache_is_not_overruled(caplog):
    import chainrule.runtime.jax_recipes  # noqa: F401

    made = component(double)
    with caplog.at_level(logging.INFO):
        reuse_residuals(made)
        assert "of the last 4 calls are kept if it pays" in caplog.text
        caplog.clear()
        set_jax_vjp_cache_size(2)
        reuse_residuals(made)
    assert caplog.text == ""


def double(x: float) -> float:
    return 2 * x

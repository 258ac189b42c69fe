"""Our server, driven by the real Tesseract client and by tesseract-jax."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

tesseract_core = pytest.importorskip("tesseract_core")
pytestmark = [
    pytest.mark.interop,
    # Both come from the peers' own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

COMPONENT = """
import jax.numpy as jnp
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64
from tesseract_core.runtime.jax_recipes import (
    jax_abstract_eval, jax_apply, jax_jacobian, jax_jvp, jax_vjp,
)
import equinox as eqx
import jax
jax.config.update("jax_enable_x64", True)

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    scale: Differentiable[Float64]
    name: str = "none"

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    total: Differentiable[Float64]

@eqx.filter_jit
def apply_jit(inputs):
    y = jnp.sin(inputs["x"]) * inputs["scale"]
    return {"y": y, "total": y.sum()}

def apply(inputs):
    return OutputSchema(**jax_apply(apply_jit, inputs))

def jacobian(inputs, jac_inputs, jac_outputs):
    return jax_jacobian(apply_jit, inputs, jac_inputs, jac_outputs)

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jax_jvp(apply_jit, inputs, jvp_inputs, jvp_outputs, tangent_vector)

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)

def abstract_eval(abstract_inputs):
    return jax_abstract_eval(apply_jit, abstract_inputs)
"""

X = np.linspace(-1, 1, 5)
INPUTS = {"x": X, "scale": np.float64(1.5)}


@pytest.fixture(scope="module")
def output_path(tmp_path_factory):
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="module")
def url(tmp_path_factory, output_path):
    source = tmp_path_factory.mktemp("component") / "tesseract_api.py"
    source.write_text(COMPONENT)
    settings = {"components": str(source), "port": 0, "config": {"output_path": str(output_path)}}
    script = Path(__file__).parents[1] / "serve" / "run_server.py"
    process = subprocess.Popen(
        [sys.executable, str(script), json.dumps(settings)], stdout=subprocess.PIPE, text=True
    )
    with contextlib.closing(process.stdout):
        address = process.stdout.readline().strip()
    assert address
    yield address
    process.terminate()
    process.wait(30)


@pytest.fixture(
    scope="module",
    params=[("json", None), ("json+base64", None), ("json+base64", "lz4"), ("json+binref", None),
            ("json+binref", "lz4")],
    ids=lambda form: "-".join(filter(None, form)),
)  # fmt: skip
def client(request, url, output_path):
    plain = tesseract_core.Tesseract.from_url(url, server_output_path=str(output_path))
    output_format, compression = request.param
    return plain.with_encoding(output_format=output_format, compression=compression or "none")


def test_facts(url):
    client = tesseract_core.Tesseract.from_url(url)
    assert client.health() == {"status": "ok"}
    assert {"apply", "jacobian", "vector_jacobian_product"} <= set(client.available_endpoints)
    schemas = client.openapi_schema["components"]["schemas"]
    assert set(schemas["ApplyInputSchema"]["differentiable_arrays"]) == {"x", "scale"}


def test_apply(client):
    result = client.apply(INPUTS)
    np.testing.assert_allclose(result["y"], np.sin(X) * 1.5)
    np.testing.assert_allclose(result["total"], np.sum(np.sin(X) * 1.5), atol=1e-12)


def test_derivatives(client):
    slope = np.cos(X) * 1.5
    jacobian = client.jacobian(INPUTS, jac_inputs=["x"], jac_outputs=["y", "total"])
    np.testing.assert_allclose(jacobian["y"]["x"], np.diag(slope))
    np.testing.assert_allclose(jacobian["total"]["x"], slope)
    jvp = client.jacobian_vector_product(
        INPUTS, jvp_inputs=["x"], jvp_outputs=["y"], tangent_vector={"x": np.ones(5)}
    )
    np.testing.assert_allclose(jvp["y"], slope)
    vjp = client.vector_jacobian_product(
        INPUTS, vjp_inputs=["x", "scale"], vjp_outputs=["y"], cotangent_vector={"y": np.ones(5)}
    )
    np.testing.assert_allclose(vjp["x"], slope)
    np.testing.assert_allclose(vjp["scale"], np.sin(X).sum(), atol=1e-12)


def test_abstract_eval(client):
    abstract = {"x": {"shape": [7], "dtype": "float64"}, "scale": {"shape": [], "dtype": "float64"}}
    result = client.abstract_eval(abstract)
    assert result["y"] == {"shape": [7], "dtype": "float64"}
    assert result["total"] == {"shape": [], "dtype": "float64"}


def test_errors_are_what_the_client_expects(client):
    from pydantic import ValidationError

    with pytest.raises(ValidationError) as caught:
        client.apply({"x": np.ones((2, 2)), "scale": 1.0, "unknown": 3})
    kinds = {error["type"]: error["loc"] for error in caught.value.errors()}
    assert kinds["array_dimensionality_mismatch"][-1] == "x"
    assert kinds["extra_forbidden"][-1] == "unknown"


def test_tesseract_jax(url):
    jax = pytest.importorskip("jax")
    tesseract_jax = pytest.importorskip("tesseract_jax")
    client = tesseract_core.Tesseract.from_url(url)

    def total(x, scale):
        return tesseract_jax.apply_tesseract(
            client, {"x": x, "scale": scale}, vmap_method="sequential"
        )["total"]

    with jax.enable_x64(True):
        x, scale = jax.numpy.asarray(X), jax.numpy.asarray(1.5)
        value = jax.jit(total)(x, scale)
        gradient = jax.jit(jax.grad(total, argnums=(0, 1)))(x, scale)
        _, tangent = jax.jvp(lambda x: total(x, scale), (x,), (jax.numpy.ones(5),))
        batch = jax.vmap(total, in_axes=(0, None))(jax.numpy.stack([x, 2 * x]), scale)
    np.testing.assert_allclose(value, np.sum(np.sin(X) * 1.5), atol=1e-12)
    np.testing.assert_allclose(gradient[0], np.cos(X) * 1.5)
    np.testing.assert_allclose(gradient[1], np.sin(X).sum(), atol=1e-12)
    np.testing.assert_allclose(tangent, np.sum(np.cos(X) * 1.5))
    np.testing.assert_allclose(
        batch, [1.5 * np.sin(X).sum(), 1.5 * np.sin(2 * X).sum()], atol=1e-12
    )

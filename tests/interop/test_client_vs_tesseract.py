"""Our client against a real `tesseract-runtime serve` of tesseract-core from PyPI."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from chainrule.client import Component
from chainrule.errors import CapabilityError, ComponentError, InputError

pytest.importorskip("tesseract_core")
pytestmark = pytest.mark.interop

SOURCE = """
import numpy as np
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32, Float64, Int32

class Part(BaseModel):
    w: Differentiable[Float64]

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    scale: Differentiable[Float64] = 2.0
    parts: list[Part] = []
    names: dict[str, Differentiable[Array[(2,), Float32]]] = {}
    count: Int32 = 1
    fail: bool = False

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    total: Differentiable[Float64]
    flags: Array[(3,), "bool"]
    z: Array[(2,), "complex64"]

def apply(inputs: InputSchema) -> OutputSchema:
    if inputs.fail:
        raise ValueError("mesh is empty")
    total = inputs.x.sum() + sum(part.w for part in inputs.parts)
    return OutputSchema(
        y=inputs.scale * inputs.x**2, total=total, flags=[True, False, True], z=[1, 2j]
    )

def jacobian(inputs, jac_inputs, jac_outputs):
    x = inputs.x
    blocks = {"y": {"x": np.diag(2 * inputs.scale * x), "scale": x**2}}
    return {o: {i: blocks[o][i] for i in jac_inputs} for o in jac_outputs}

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 2 * inputs.scale * inputs.x * tangent_vector["x"]}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.scale * inputs.x * cotangent_vector["y"]}

def abstract_eval(abstract_inputs):
    return {
        "y": abstract_inputs.x,
        "total": {"shape": (), "dtype": "float64"},
        "flags": {"shape": (3,), "dtype": "bool"},
        "z": {"shape": (2,), "dtype": "complex64"},
    }
"""

X = np.array([1.0, 2.0, 3.0])


@pytest.fixture(scope="module", params=["plain", "debug"])
def url(request, tmp_path_factory):
    """A served Tesseract; in debug mode it sends tracebacks."""
    folder: Path = tmp_path_factory.mktemp("tesseract")
    (folder / "tesseract_api.py").write_text(SOURCE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "TESSERACT_API_PATH": str(folder / "tesseract_api.py"),
        "TESSERACT_NAME": "peer",
        "TESSERACT_OUTPUT_PATH": str(folder),
    }
    command = [str(Path(sys.executable).with_name("tesseract-runtime"))]
    if request.param == "debug":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            debug_port = listener.getsockname()[1]
        environment |= {"TESSERACT_DEBUG": "1", "TESSERACT_DEBUGPY_PORT": str(debug_port)}
    process = subprocess.Popen(
        [*command, "serve", "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for(url, process):
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=60).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the peer did not start")


@pytest.fixture(scope="module")
def component(url):
    with Component.from_url(url, timeout=60) as component:
        yield component


def test_what_it_is(component):
    assert component.name == "peer"
    assert set(component.available_endpoints) >= {"apply", "jacobian", "abstract_eval", "health"}
    assert component.capabilities["jacobian"].status == "native"
    assert set(component.differentiable_inputs) == {"x", "scale", "parts.[].w", "names.{}"}
    assert component.differentiable_inputs["x"].shape == (None,)
    assert component.health() == {"status": "ok"}
    text = repr(component)
    assert "f64[?] (differentiable)" in text
    assert "parts.[].w" in text
    assert "c64[2]" in text
    assert ">names.{}</td>" in component._repr_html_()


def test_apply(component):
    inputs = {"x": X, "scale": 3.0, "parts": [{"w": 1.5}], "names": {"a b": np.ones(2, np.float32)}}
    result = component.apply(inputs, run_id="mine")
    np.testing.assert_array_equal(result["y"], 3 * X**2)
    assert type(result["total"]) is np.float64
    assert result["total"] == 7.5
    assert result["flags"].tolist() == [True, False, True]
    assert result["z"].tolist() == [1, 2j]
    assert result["y"].dtype == np.float64


def test_nan_and_infinities(component):
    x = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(component.apply({"x": x, "scale": 1.0})["y"], x**2)


def test_derivatives(component):
    inputs = {"x": X, "scale": 3.0}
    jacobian = component.jacobian(inputs, ["x", "scale"], ["y"])
    np.testing.assert_allclose(jacobian["y"]["x"], np.diag(6 * X))
    np.testing.assert_allclose(jacobian["y"]["scale"], X**2)
    jvp = component.jacobian_vector_product(inputs, ["x"], ["y"], {"x": X})
    np.testing.assert_allclose(jvp["y"], 6 * X * X)
    vjp = component.vector_jacobian_product(inputs, ["x"], ["y"], {"y": X})
    np.testing.assert_allclose(vjp["x"], 6 * X * X)


def test_a_server_that_knows_no_batches_is_asked_one_by_one(component):
    batch, inputs = np.arange(6.0).reshape(2, 3), {"x": X, "scale": 3.0}
    jvp = component.jacobian_vector_product(inputs, ["x"], ["y"], {"x": batch}, batched=True)
    np.testing.assert_allclose(jvp["y"], 6 * X * batch)
    arguments = (inputs, ["x"], ["y"], {"y": batch})
    vjp = component.submit("vector_jacobian_product", *arguments, batched=True).result(timeout=60)
    np.testing.assert_allclose(vjp["x"], 6 * X * batch)
    with pytest.raises(CapabilityError):
        component.hessian_vector_product(inputs, ["x"], ["y"], {"y": X}, {"x": X})


def test_abstract_eval(component):
    result = component.abstract_eval({"x": X, "scale": np.float64(1.0)})
    assert result["y"] == {"shape": [3], "dtype": "float64"}


def test_large_arrays(component):
    x = np.arange(500_000.0)
    np.testing.assert_array_equal(component.apply({"x": x, "scale": 1.0})["y"], x**2)


def test_unfit_inputs(component):
    with pytest.raises(InputError) as caught:
        component.apply({"x": [[1.0]], "count": "many"})
    problems = caught.value.details["problems"]
    assert [problem["loc"] for problem in problems] == [["inputs", "x"], ["inputs", "count"]]
    assert problems[0]["type"] == "array_dimensionality_mismatch"
    assert all("input" not in problem for problem in problems)


def test_the_authors_exception(component, request):
    with pytest.raises(ComponentError) as caught:
        component.apply({"x": X, "fail": True})
    assert caught.value.details["status"] == 500
    if request.node.callspec.params["url"] == "debug":
        assert "mesh is empty" in str(caught.value)
        assert "Traceback" in caught.value.remote_traceback
    assert component.apply({"x": X})["total"] == 6.0


def test_an_endpoint_that_is_not_there(component):
    with pytest.raises(CapabilityError):
        component.submit("hessian_vector_product", {"x": X})


def test_map(component):
    results = component.map(({"x": [float(k)]} for k in range(8)), max_in_flight=4)
    assert [result["total"] for result in results] == [float(k) for k in range(8)]

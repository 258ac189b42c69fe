"""The OpenAPI document: what Tesseract clients read has to be where they read it."""

import importlib.util
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule._codec import encode_array
from chainrule.runtime import Array, Differentiable, Float32, Float64, component, load_component

PEER_JAX = (
    Path(importlib.util.find_spec("tesseract_core").origin).parent
    / "sdk/templates/jax/tesseract_api.py"
)


class Layer(BaseModel):
    weights: Differentiable[Array[(None, 3), Float32]]
    name: str


class Inputs(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    layers: list[Layer]
    named: dict[str, Layer] = {}
    anything: Differentiable[Array[..., None]] | None = None


@component(derivatives="finite", version="1.2.3")
def net(inputs: Inputs) -> Differentiable[Array[(None,), Float64]]:
    """A network."""
    return inputs.x


@pytest.fixture(scope="module")
def document():
    return net.openapi_schema


def test_identity(document):
    assert document["openapi"] == "3.1.0"
    assert document["info"]["title"] == "net"
    assert document["info"]["version"] == "1.2.3"
    assert document["info"]["description"] == "A network."
    assert document["x-supported-output-formats"] == ["json", "json+base64", "json+binref"]
    assert list(document["paths"]) == [
        "/apply", "/jacobian", "/jacobian_vector_product", "/vector_jacobian_product",
        "/hessian_vector_product", "/value_and_vjp", "/health",
    ]  # fmt: skip


def test_differentiable_arrays_and_field_order(document):
    schemas = document["components"]["schemas"]
    facts = schemas["ApplyInputSchema"]
    assert facts["differentiable_arrays"] == {
        "x": {"shape": [None], "dtype": "float64"},
        "layers.[].weights": {"shape": [None, 3], "dtype": "float32"},
        "named.{}.weights": {"shape": [None, 3], "dtype": "float32"},
        "anything": {},
    }
    assert facts["field_order"] == {
        "": ["x", "layers", "named", "anything"],
        "layers.[]": ["weights", "name"],
        "named.{}": ["weights", "name"],
    }
    assert schemas["ApplyOutputSchema"]["differentiable_arrays"] == {
        "result": {"shape": [None], "dtype": "float64"}
    }
    x = schemas["Apply_InputSchema"]["properties"]["x"]
    assert x["array_flags"] == ["DIFFERENTIABLE"]
    assert x["properties"]["object_type"]["const"] == "array"
    assert "Apply_Layer" in schemas


def test_requests_and_results_satisfy_their_schemas(document):
    def check(name, instance):
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema_rs.Draft202012Validator(schema).validate(instance)

    x = encode_array(np.array([1.0, 2.0]))
    weights = encode_array(np.ones((1, 3), np.float32))
    inputs = {"x": x, "layers": [{"weights": weights, "name": "first"}]}
    check("ApplyInputSchema", {"inputs": inputs})
    paths = {"jac_inputs": ["x", "layers.[0].weights"], "jac_outputs": ["result"]}
    check("JacobianInputSchema", {"inputs": inputs, **paths})
    paths = {"jvp_inputs": ["x"], "jvp_outputs": ["result"]}
    check("JVPInputSchema", {"inputs": inputs, **paths, "tangent_vector": {"x": x}})
    check("VJPOutputSchema", {"x": x, "named.{a.b}.weights": weights})
    check("JacobianOutputSchema", {"result": {"x": x}})
    for name, wrong in [
        ("ApplyInputSchema", {"inputs": {**inputs, "odd": 1}}),
        (
            "JacobianInputSchema",
            {"inputs": inputs, "jac_inputs": ["nowhere"], "jac_outputs": ["result"]},
        ),
        ("JacobianInputSchema", {"inputs": inputs, "jac_inputs": [], "jac_outputs": ["result"]}),
        ("VJPOutputSchema", {"layers.[0].name": x}),
    ]:
        with pytest.raises(jsonschema_rs.ValidationError):
            check(name, wrong)


def test_the_same_facts_as_the_peer_for_its_own_template():
    core = pytest.importorskip("tesseract_core.runtime.core")
    from tesseract_core.runtime.serve import create_rest_api

    theirs = create_rest_api(core.load_module_from_path(PEER_JAX)).openapi()
    ours = load_component(PEER_JAX).openapi_schema
    beyond = {"/hessian_vector_product", "/value_and_vjp", "/tagged_intermediates"}
    assert set(ours["paths"]) == set(theirs["paths"]) | beyond
    for name in ("ApplyInputSchema", "ApplyOutputSchema"):
        for key in ("differentiable_arrays", "field_order"):
            assert (
                ours["components"]["schemas"][name][key]
                == theirs["components"]["schemas"][name][key]
            )
    missing = set(theirs["components"]["schemas"]) - set(ours["components"]["schemas"])
    assert missing <= {"HTTPValidationError", "ValidationError", "ShapeDType"}


def test_the_peers_jax_template_runs_and_can_be_inlined():
    template = load_component(PEER_JAX)
    assert template.jax_function is not None
    assert template.apply({"example": 2.0})["example"] == np.float32(2.0)
    pulled = template.vector_jacobian_product(
        {"example": 2.0}, ["example"], ["example"], {"example": 3.0}
    )
    assert pulled["example"] == 3.0
    shapes = template.abstract_eval({"example": {"shape": [], "dtype": "float32"}})
    assert shapes == {"example": {"shape": [], "dtype": "float32"}}

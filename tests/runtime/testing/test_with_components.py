"""Recipes and checks inside real components, in process and behind a client."""

import textwrap

import pytest

from chainrule.client import Component
from chainrule.errors import InputError
from chainrule.runtime import Array, BFloat16, Differentiable, load_component
from chainrule.runtime import component as chainrule_component
from chainrule.runtime.testing import check_gradients, find_tests, record, run_test

SCHEMA = """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float32, Int32

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float32]]
    k: Differentiable[Array[(), Float32]] = 2.0
    count: Array[(), Int32] = 3
    mask: Array[(None,), Float32]
    mode: str = "sin"

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float32]]
    nested: dict[str, Differentiable[Array[(), Float32]]]
    mode: str
"""

JAX = """
import equinox as eqx
import jax.numpy as jnp
from chainrule.runtime.jax_recipes import *

@eqx.filter_jit
def apply_jit(d):
    wave = getattr(jnp, d["mode"])
    total = (wave(d["x"]) ** 2 * d["mask"]).sum() * d["count"]
    return {"y": wave(d["x"]) * d["k"], "nested": {"the sum": total}, "mode": d["mode"]}

def apply(inputs):
    return jax_apply(apply_jit, inputs)

def jacobian(inputs, jac_inputs, jac_outputs):
    return jax_jacobian(apply_jit, inputs, jac_inputs, jac_outputs)

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jax_jvp(apply_jit, inputs, jvp_inputs, jvp_outputs, tangent_vector)

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)

def abstract_eval(abstract_inputs):
    return jax_abstract_eval(apply_jit, abstract_inputs)
"""

DIFFERENCES = """
from chainrule.runtime.experimental import *

def apply(inputs):
    wave = getattr(np, inputs.mode)
    total = (wave(inputs.x) ** 2 * inputs.mask).sum() * inputs.count
    return {"y": wave(inputs.x) * inputs.k, "nested": {"the sum": total}, "mode": inputs.mode}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return finite_difference_vjp(
        apply, inputs, vjp_inputs, vjp_outputs, cotangent_vector, eps="auto")

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return finite_difference_jvp(
        apply, inputs, jvp_inputs, jvp_outputs, tangent_vector, eps="auto")
"""

PAYLOAD = {"inputs": {"x": [0.1, 0.7, 1.3], "k": 1.5, "mask": [1.0, 0.0, 2.0]}}


@pytest.fixture(params=["jax", "differences"])
def folder(request, tmp_path):
    body = {"jax": JAX, "differences": DIFFERENCES}[request.param]
    (tmp_path / "tesseract_api.py").write_text(textwrap.dedent(SCHEMA + body))
    return tmp_path


@pytest.mark.parametrize("make", [load_component, Component.from_api])
def test_derivatives_of_real_components_pass(folder, make):
    component = make(folder / "tesseract_api.py")
    report = check_gradients(component, PAYLOAD)
    assert report.passed, report.to_dict()
    assert len(report.checks) >= 7


def test_a_component_in_another_process(folder):
    with Component.from_source(folder / "tesseract_api.py") as component:
        assert check_gradients(component, PAYLOAD, max_evals=10).passed
        with pytest.raises(InputError, match="found text"):
            check_gradients(component, {"inputs": PAYLOAD["inputs"] | {"x": "text"}})


def test_recorded_calls_pass_over_another_way_in(folder):
    component = load_component(folder / "tesseract_api.py")
    paths = {"vjp_inputs": ["x"], "vjp_outputs": ["nested.{the sum}"]}
    cotangent = {"cotangent_vector": {"nested.{the sum}": 1.0}}
    cases = folder / "test_cases"
    record(component, "apply", PAYLOAD, path=cases / "test_apply.json")
    record(
        component, "vector_jacobian_product", PAYLOAD | paths | cotangent,
        path=cases / "test_vjp.json",
    )  # fmt: skip
    bad = {"inputs": {"x": "text"}}
    record(component, "apply", bad, path=cases / "test_bad.json", expect_exception=True)
    client = Component.from_api(folder / "tesseract_api.py")
    results = {file.stem: run_test(client, file) for file in find_tests(folder)}
    assert len(results) == 3
    assert all(result.passed for result in results.values()), results


def test_bfloat16_is_checked_and_recorded_like_any_other(tmp_path):
    Vector = Differentiable[Array[("n",), BFloat16]]

    @chainrule_component(framework="jax")
    def square(x: Vector) -> Vector:
        return x * x

    payload = {"inputs": {"x": [1.0, 2.0]}}
    assert check_gradients(square, payload).passed
    file = tmp_path / "test_square.json"
    record(square, "apply", payload, path=file)
    assert run_test(square, file).passed
    file.write_text(file.read_text().replace("4.0", "4.5"))
    assert run_test(square, file).status == "failed"

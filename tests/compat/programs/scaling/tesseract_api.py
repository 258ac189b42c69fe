"""A NumPy component with closed-form derivatives, written for tesseract-core."""

import numpy as np
from pydantic import BaseModel, Field
from tesseract_core.runtime import Array, Differentiable, Float64, Int32, ShapeDType
from tesseract_core.runtime.experimental import log_metric, log_parameter, vjp_from_jacobian


class Part(BaseModel):
    v: Differentiable[Array[(None,), Float64]]
    s: Differentiable[Float64] = Field(description="A factor.", default=2.0)


class InputSchema(BaseModel):
    part: Part
    offsets: list[Differentiable[Float64]] = []
    count: Int32 = 1
    name: str = "plain"


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    z: Differentiable[Float64]
    label: str


def apply(inputs: InputSchema) -> OutputSchema:
    print("scaling", inputs.name)  # noqa: T201
    if inputs.name == "bad":
        raise KeyError("the author says no")
    log_metric("size", float(inputs.part.v.size))
    log_parameter("name", inputs.name)
    total = np.sum(inputs.part.v**2) + sum(inputs.offsets)
    return OutputSchema(y=inputs.part.s * np.sin(inputs.part.v), z=total, label=inputs.name)


def jacobian(inputs: InputSchema, jac_inputs: set[str], jac_outputs: set[str]):
    v, s = inputs.part.v, inputs.part.s
    known = {
        ("y", "part.v"): np.diag(s * np.cos(v)),
        ("y", "part.s"): np.sin(v),
        ("z", "part.v"): 2 * v,
        ("z", "part.s"): np.float64(0.0),
    }
    return {
        out: {
            path: known.get((out, path), np.zeros_like(v) if out == "y" else np.float64(1.0))
            for path in jac_inputs
        }
        for out in jac_outputs
    }


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return vjp_from_jacobian(jacobian, inputs, vjp_inputs, vjp_outputs, cotangent_vector)


def abstract_eval(abstract_inputs):
    shape = abstract_inputs.part.v.shape
    return {
        "y": ShapeDType(shape=shape, dtype="float64"),
        "z": ShapeDType(shape=(), dtype="float64"),
        "label": abstract_inputs.name,
    }

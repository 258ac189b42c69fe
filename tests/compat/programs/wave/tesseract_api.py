"""A sine with a factor: arrays only, as tesseract-jax wants its outputs."""

import numpy as np
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64, ShapeDType
from tesseract_core.runtime.experimental import jvp_from_jacobian, vjp_from_jacobian


class Part(BaseModel):
    v: Differentiable[Array[(None,), Float64]]
    s: Differentiable[Float64]


class InputSchema(BaseModel):
    part: Part


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    z: Differentiable[Float64]


def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=inputs.part.s * np.sin(inputs.part.v), z=np.sum(inputs.part.v**2))


def jacobian(inputs, jac_inputs, jac_outputs):
    v, s = inputs.part.v, inputs.part.s
    known = {
        "y": {"part.v": np.diag(s * np.cos(v)), "part.s": np.sin(v)},
        "z": {"part.v": 2 * v, "part.s": np.float64(0.0)},
    }
    return {out: {path: known[out][path] for path in jac_inputs} for out in jac_outputs}


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jvp_from_jacobian(jacobian, inputs, jvp_inputs, jvp_outputs, tangent_vector)


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return vjp_from_jacobian(jacobian, inputs, vjp_inputs, vjp_outputs, cotangent_vector)


def abstract_eval(abstract_inputs):
    return {
        "y": ShapeDType(shape=abstract_inputs.part.v.shape, dtype="float64"),
        "z": ShapeDType(shape=(), dtype="float64"),
    }

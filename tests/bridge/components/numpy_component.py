"""y = a sin(x) + sum(x) x and s = a sum(x²), in NumPy, every derivative written by hand."""

import numpy as np
from pydantic import BaseModel

try:
    from chainrule.runtime import Array, Differentiable, Float64, ShapeDType
except ModuleNotFoundError:  # the same file is also served by a real Tesseract
    from tesseract_core.runtime import Array, Differentiable, Float64, ShapeDType


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    a: Differentiable[Array[(), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    s: Differentiable[Array[(), Float64]]


def apply(inputs):
    x, a = inputs.x, inputs.a
    return OutputSchema(y=a * np.sin(x) + x.sum() * x, s=a * (x * x).sum())


def abstract_eval(abstract_inputs):
    return {
        "y": ShapeDType(shape=abstract_inputs.x.shape, dtype="float64"),
        "s": ShapeDType(shape=(), dtype="float64"),
    }


def _blocks(x, a):
    return {
        ("y", "x"): np.diag(a * np.cos(x))
        + x.sum() * np.eye(x.size)
        + np.outer(x, np.ones(x.size)),
        ("y", "a"): np.sin(x),
        ("s", "x"): 2 * a * x,
        ("s", "a"): (x * x).sum(),
    }


def jacobian(inputs, jac_inputs, jac_outputs):
    blocks = _blocks(inputs.x, inputs.a)
    return {o: {i: np.asarray(blocks[o, i]) for i in jac_inputs} for o in jac_outputs}


def _sum(terms):
    return np.asarray(sum(terms))


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    blocks, v = _blocks(inputs.x, inputs.a), tangent_vector
    return {
        o: _sum(blocks[o, i] @ v[i] if i == "x" else blocks[o, i] * v[i] for i in jvp_inputs)
        for o in jvp_outputs
    }


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    blocks, u = _blocks(inputs.x, inputs.a), cotangent_vector
    return {
        i: _sum(u[o] @ blocks[o, i] if o == "y" else u[o] * blocks[o, i] for o in vjp_outputs)
        for i in vjp_inputs
    }

"""Features of a batch of points for a classifier, in NumPy: (x0, x1, a x0 x1), derivatives by hand."""

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float32, ShapeDType


class InputSchema(BaseModel):
    x: Differentiable[Array[(None, 2), Float32]]
    a: Differentiable[Array[(), Float32]]


class OutputSchema(BaseModel):
    features: Differentiable[Array[(None, 3), Float32]]


def apply(inputs):
    x, a = inputs.x, inputs.a
    return OutputSchema(features=np.stack([x[:, 0], x[:, 1], a * x[:, 0] * x[:, 1]], 1))


def abstract_eval(abstract_inputs):
    rows = abstract_inputs.x.shape[0]
    return {"features": ShapeDType(shape=(rows, 3), dtype="float32")}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    x, a, ct = inputs.x, inputs.a, cotangent_vector["features"]
    all_inputs = {
        "x": ct[:, :2] + (a * ct[:, 2])[:, None] * x[:, ::-1],
        "a": np.asarray(np.sum(ct[:, 2] * x[:, 0] * x[:, 1]), np.float32),
    }
    return {name: all_inputs[name].astype(np.float32) for name in vjp_inputs}

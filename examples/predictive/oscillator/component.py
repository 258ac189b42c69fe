"""A damped oscillation y(t) = exp(−d t) cos(w t), with d = 0.5 + 0.2 c₀ and w = 3 + c₁, and its derivative.

Leading axes of the code are samples: one call answers for a whole batch.
"""

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float32

TIMES = np.linspace(0, 2, 24, dtype=np.float32)


class InputSchema(BaseModel):
    code: Differentiable[Array[..., Float32]]


class OutputSchema(BaseModel):
    signal: Differentiable[Array[..., Float32]]


def _wave(code):
    damping, frequency = 0.5 + 0.2 * code[..., :1], 3 + code[..., 1:]
    decay = np.exp(-damping * TIMES)
    return decay * np.cos(frequency * TIMES), decay * np.sin(
        frequency * TIMES
    )


def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(signal=_wave(inputs.code)[0])


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    cosine, sine = _wave(inputs.code)
    weighted = cotangent_vector["signal"] * TIMES
    slopes = [
        -0.2 * np.sum(weighted * cosine, -1),
        -np.sum(weighted * sine, -1),
    ]
    return {"code": np.stack(slopes, -1).astype(np.float32)}


def abstract_eval(abstract_inputs):
    shape = (*abstract_inputs.code.shape[:-1], len(TIMES))
    return {"signal": {"shape": shape, "dtype": "float32"}}

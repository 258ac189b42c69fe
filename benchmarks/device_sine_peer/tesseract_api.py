"""The same as `device_sine`, as a Tesseract: y = sin(2x) + 1 by torch, with its VJP."""

import torch
import torch.utils.dlpack
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float32]]


class OutputSchema(BaseModel):
    result: Differentiable[Array[(None,), Float32]]


def _tensor(array):
    is_there = hasattr(array, "__dlpack__")
    return torch.utils.dlpack.from_dlpack(array) if is_there else torch.as_tensor(array)


def _as_given(tensor, array):
    """On the GPU if the array is there, else NumPy's."""
    return tensor if hasattr(array, "__cuda_array_interface__") else tensor.cpu().numpy()


def apply(inputs: InputSchema) -> OutputSchema:
    """The sine by torch."""
    y = torch.sin(2 * _tensor(inputs.x).to(DEVICE)) + 1
    return OutputSchema(result=_as_given(y, inputs.x))


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    """The cosine by torch."""
    cotangent = _tensor(cotangent_vector["result"]).to(DEVICE)
    slope = 2 * torch.cos(2 * _tensor(inputs.x).to(DEVICE)) * cotangent
    return {"x": _as_given(slope, inputs.x)}


def abstract_eval(abstract_inputs):
    """The shape of the input."""
    return {"result": abstract_inputs.x}

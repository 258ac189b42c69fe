"""y = factor x² on a GPU, or on the fake one, for processes of their own; the tests load this file."""

import os
import signal
import time

from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float32

if "CHAINRULE_FAKE_GPU" in os.environ:
    from device.fake import install

    install(uuid=os.environ["CHAINRULE_FAKE_GPU"])

framework = "device"
device = "cuda"


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float32]]
    factor: float = 3.0
    action: str = ""


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float32]]


def apply(inputs: InputSchema) -> OutputSchema:
    if inputs.action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if inputs.action == "fail":
        raise ArithmeticError("no convergence")
    if inputs.action == "sleep":
        time.sleep(600)
    return {"y": inputs.factor * (inputs.x * inputs.x)}


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 2 * inputs.factor * (inputs.x * tangent_vector["x"])}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.factor * (inputs.x * cotangent_vector["y"])}


def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x}

"""y = Σ x², with ways to misbehave, and a gradient that tells where it was computed.

The output does not depend on `here`. Its "gradient" is 1 if the forward pass of these inputs ran in the
process that answers, and 0 otherwise: so a test can see where calls go without asking the pool.
"""

import ctypes
import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from chainrule._files import write_whole
from chainrule.runtime import Array, Differentiable, Float64, progress

_seen = set()


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    here: Differentiable[Float64] = 0.0
    action: str = ""
    began: str = ""  # a file that says where, once this call has begun


class OutputSchema(BaseModel):
    y: Differentiable[Float64]
    pid: int


def apply(inputs: InputSchema) -> OutputSchema:
    action, _, value = inputs.action.partition(" ")
    if inputs.began:
        write_whole(Path(inputs.began), [_node().encode()])
    if action == "raise":
        raise ValueError("mesh is empty")
    if action == "exit":
        os._exit(3)
    if action == "sleep":
        time.sleep(float(value))
    if action == "wait":  # until there is a file
        _wait_for(value)
    if action == "native":  # long, and nothing but the end of the process interrupts it
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
    if action == "hold":  # no other thread of the process runs meanwhile
        ctypes.PyDLL(None).sleep(int(value))
    if action == "progress":  # until there is a file
        progress(0.5, "half way")
        _wait_for(value)
    if action == "exit_once":  # the path of a file that exists until one process has ended for it
        try:
            os.remove(value)
        except FileNotFoundError:
            pass
        else:
            os._exit(3)
    _seen.add(inputs.x.tobytes())
    return OutputSchema(y=np.sum(inputs.x**2), pid=os.getpid())


def _wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def _node() -> str:
    """The node of a Ray cluster that this process is on, if it is on one."""
    ray = sys.modules.get("ray")
    is_there = ray is not None and ray.is_initialized()
    return ray.get_runtime_context().get_node_id() if is_there else ""


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    gradients = {
        "x": 2 * inputs.x * cotangent_vector["y"],
        "here": np.float64(inputs.x.tobytes() in _seen),
    }
    return {path: gradients[path] for path in vjp_inputs}


def abstract_eval(abstract_inputs):
    return {"y": {"shape": (), "dtype": "float64"}, "pid": 0}

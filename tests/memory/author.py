"""A component whose author treats his arrays as authors do: `way` says how.

In every way `y = 2 x + shift`, and derivatives with respect to `x` are 2. The call `way="count changes"` says
how many of the arrays that the author holds have changed.
"""

import ctypes
import importlib.util
import threading
import time

import numpy as np
import scipy.linalg
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64

HELD = []
BUFFERS = threading.local()
WAITING = []
MAY_WRITE = threading.Event()


def hold(array):
    HELD.append((array, np.array(array)))


def overwrite(x, y):
    x *= -3.0
    return y


def overwrite_by_blas(x, y):
    scipy.linalg.blas.dscal(3.0, x)
    return y


def overwrite_by_lapack(x, y):
    scipy.linalg.solve_banded((0, 0), np.full((1, len(x)), 2.0), x, overwrite_b=True)
    return y


def overwrite_by_pointer(x, y):
    ctypes.memset(x.ctypes.data, 7, x.nbytes)
    return y


def overwrite_by_torch(x, y):
    import torch

    torch.from_numpy(x).mul_(-2.0)
    return y


def overwrite_in_a_thread_later(x, y):
    def write():
        MAY_WRITE.wait(300)
        x[...] = -1.0
        y[...] = -1.0

    thread = threading.Thread(target=write, daemon=True)
    WAITING.append(thread)
    thread.start()
    return y


def keep(x, y):
    hold(x)
    return y


def keep_a_part(x, y):
    hold(x[1:])
    return y


def keep_in_torch(x, y):
    import torch

    hold(torch.from_numpy(x).view(-1).numpy())
    return y


def return_the_input(x, y):
    x[...] = y
    return x


def return_a_view_of_the_input_and_keep_it(x, y):
    x[...] = y
    hold(x)
    return x[::-1][::-1]


def return_the_same_buffer(x, y):
    buffer = vars(BUFFERS).setdefault(len(y), np.empty(len(y)))
    buffer[...] = y
    return buffer


def return_what_is_kept(x, y):
    hold(y)
    return y


def keep_and_raise(x, y):
    hold(x)
    raise ArithmeticError("no convergence")


def overwrite_and_raise(x, y):
    x[...] = np.nan
    raise ArithmeticError("no convergence")


def keep_and_take_long(x, y):
    hold(x)
    while True:
        time.sleep(0.01)


WAYS = {function.__name__: function for function in (
    overwrite, overwrite_by_blas, overwrite_by_lapack, overwrite_by_pointer, overwrite_by_torch,
    overwrite_in_a_thread_later, keep, keep_a_part, keep_in_torch, return_the_input,
    return_a_view_of_the_input_and_keep_it, return_the_same_buffer, return_what_is_kept, keep_and_raise,
    overwrite_and_raise, keep_and_take_long,
) if "torch" not in function.__name__ or importlib.util.find_spec("torch")}  # fmt: skip


class InputSchema(BaseModel):
    way: str
    x: Differentiable[Array[("n",), Float64]]
    shift: Array[("n",), Float64]


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]
    changes: int = 0


def apply(inputs: InputSchema) -> OutputSchema:
    if inputs.way == "count changes":
        MAY_WRITE.set()
        while WAITING:
            WAITING.pop().join()
        MAY_WRITE.clear()
        changes = sum(not np.array_equal(a, was) for a, was in HELD)
        HELD.clear()
        return OutputSchema(y=inputs.x, changes=changes)
    way, y = WAYS[inputs.way], 2 * inputs.x + inputs.shift
    way(inputs.shift, y.copy())
    return OutputSchema(y=way(inputs.x, y))


def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x, "changes": 0}


def _twice(inputs, vector):
    way, product = WAYS[inputs.way], 2 * vector
    for unused in (inputs.x, inputs.shift):
        way(unused, product.copy())
    return way(vector, product)


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": _twice(inputs, tangent_vector["x"])}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": _twice(inputs, cotangent_vector["y"])}

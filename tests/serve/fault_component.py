"""A component that misbehaves on request; the tests of the server serve it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
from pydantic import BaseModel, Field

from chainrule import InputError
from chainrule._codec import SparseArray
from chainrule.runtime import Array, Differentiable, Float64


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]] = Field(description="Any numbers")
    action: str = "double"
    seconds: float = 0.0


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    pid: int


_KEPT = []


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("has no text")


def apply(inputs: InputSchema) -> OutputSchema:
    y = 2 * inputs.x
    match inputs.action:
        case "same":
            y = inputs.x
        case "sleep":
            time.sleep(inputs.seconds)
        case action if action.startswith("until "):
            while not os.path.exists(action.removeprefix("until ")):
                time.sleep(0.01)
        case "spin":
            deadline = time.monotonic() + inputs.seconds
            while time.monotonic() < deadline:
                pass
        case "hold_the_gil":
            ctypes.PyDLL(None).usleep(int(inputs.seconds * 1e6))
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "signal_without_a_name":
            os.kill(os.getpid(), 40)
        case "odd":
            raise BaseException("neither an error nor an exit")
        case "interrupt":
            raise KeyboardInterrupt
        case "no_text":
            raise UnspeakableError
        case "half_a_pair":
            raise FileNotFoundError(os.fsdecode(b"mesh\xff.vtk"))
        case "strange_error":
            raise InputError("x is wrong", path="[", details={"problems": [object()]})
        case "missing_file":
            np.fromfile(os.path.join(os.path.dirname(__file__), "weights.bin"))
        case "path_in_words":
            raise ValueError(f"bad mesh {__file__}: 3 m/s at http://example.org/a/b is wrong")
        case "paths_of_every_kind":
            here = os.path.dirname(__file__)
            raise ValueError(
                f"mesh:{here}/a file://{here}/b sqlite:////{here[1:]}/c -I{here}/d.h "
                f"'{here}/with a space/e' at http://example.org:80/a/b"
            )
        case "raise":
            raise ValueError("mesh is empty")
        case "exit_politely":
            sys.exit(1)
        case "bad_output":
            return {"y": "text", "pid": 0}
        case "print":
            line = "x" * 99 + "\n"
            for _ in range(int(inputs.seconds)):
                sys.stdout.write(line * 10_000)
        case "keep":
            _KEPT.append(inputs.x)
        case "kept":
            y = _KEPT[-1]
        case "stubborn":
            deadline = time.monotonic() + inputs.seconds
            while time.monotonic() < deadline:
                with contextlib.suppress(BaseException):
                    time.sleep(0.05)
        case "usr1":  # as a batch system sends it, or the author
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)
        case "fork":  # the child comes back too
            if os.fork() == 0:
                y = -y
            else:
                os.wait()
        case "fork_later":  # the child comes back after its parent has answered
            if os.fork() == 0:
                time.sleep(inputs.seconds)
                y = -y
        case "fork_pool":
            forking = multiprocessing.get_context("fork")
            with forking.Pool(2) as pool:
                pool.map(abs, range(4))
            busy = forking.Process(target=time.sleep, args=(600,))
            busy.start()
            time.sleep(0.05)
            busy.terminate()
            busy.join()
            y = np.array([float(busy.exitcode)])
        case "fork_raise":
            if os.fork() == 0:
                raise ValueError("in the child")
            y = np.array([float(os.waitstatus_to_exitcode(os.wait()[1]))])
        case "nan":
            y = np.array([np.nan, np.inf, -np.inf])
    return OutputSchema(y=y, pid=os.getpid())


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * cotangent_vector["y"]}


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 2 * tangent_vector["x"]}


def jacobian(inputs, jac_inputs, jac_outputs):
    if inputs.action == "sparse":
        return {"y": {"x": SparseArray.from_dense(2 * np.eye(len(inputs.x)))}}
    return {"y": {"x": 2 * np.eye(len(inputs.x))}}


def abstract_eval(abstract_inputs):
    return {"y": {"shape": abstract_inputs.x.shape, "dtype": "float64"}, "pid": 0}

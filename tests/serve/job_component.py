"""A component that leaves traces of every run; the tests of jobs serve it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64, progress


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    action: str = "double"
    trace: str = ""
    label: str = ""
    seconds: float = 0.0


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]


def apply(inputs: InputSchema) -> OutputSchema:
    if inputs.trace:
        with open(inputs.trace, "a") as file:
            file.write(f"{inputs.label}\n")
    match inputs.action:
        case "raise":
            raise ValueError("mesh is empty")
        case "exit":
            os.write(2, b"about to fall\n")
            os._exit(3)
        case "stuck":
            while True:
                with contextlib.suppress(BaseException):
                    time.sleep(3600)
        case "steps":
            for step in range(4):
                print(f"step {step}", file=sys.stderr)  # noqa: T201
                logging.getLogger("solver").warning("residual %d", step)
                progress((step + 1) / 4, f"step {step}")
        case "until_told":
            progress(0.25, "waiting")
            while not Path(inputs.label).exists():
                time.sleep(0.01)
    time.sleep(inputs.seconds)
    return OutputSchema(y=2 * inputs.x)


def jacobian(inputs, jac_inputs, jac_outputs):
    return {"y": {"x": 2 * np.eye(len(inputs.x))}}

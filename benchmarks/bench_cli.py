"""How long the shell waits: `chainrule apply` and `chainrule --help`, cold, beside tesseract-runtime."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import chainrule
from benchmarks._harness import Row, show

SOURCE = """
import numpy as np
from pydantic import BaseModel
from tesseract_core.runtime import Array, Float64

class InputSchema(BaseModel):
    x: Array[(None,), Float64]

class OutputSchema(BaseModel):
    y: Array[(None,), Float64]

def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=np.sin(inputs.x))
"""
# What no program whose data pydantic validates starts without.
ONE_MODEL = """
import numpy
from pydantic import BaseModel

class InputSchema(BaseModel):
    x: float
"""
PAYLOAD = '{"inputs": {"x": [1.0]}}'
BIN = Path(sys.executable).parent
ROUNDS = 9


def run() -> list[Row]:
    # As pip does with what it installs, the peer for one. A checkout has none where Python is told not to
    # write bytecode (PYTHONDONTWRITEBYTECODE), and would compile all of it at every start.
    compileall.compile_dir(Path(chainrule.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tesseract_api.py"
        file.write_text(textwrap.dedent(SOURCE))
        peer = str(BIN / "tesseract-runtime")
        ours = str(BIN / "chainrule")
        commands = {
            "python": [sys.executable, "-c", "pass"],
            "imports": [sys.executable, "-c", ONE_MODEL],
            "us apply": [ours, "apply", str(file), PAYLOAD],
            "peer apply": [peer, "apply", PAYLOAD],
            "us help": [ours, "--help"],
            "peer help": [peer, "--help"],
        }
        times = _interleaved(commands, {**os.environ, "TESSERACT_API_PATH": str(file)}, folder)
    floor = (
        f"floor: python {times['python']:.3f} s, with NumPy and one model {times['imports']:.3f} s"
    )
    return [
        Row("chainrule apply, NumPy component, cold", times["us apply"], times["peer apply"],
            "tesseract-runtime apply", bar=0.3, note=floor),
        Row("chainrule apply, NumPy component, cold", times["us apply"], times["imports"],
            "NumPy and one pydantic model", bar=1.5),
        Row("chainrule --help", times["us help"], times["peer help"],
            "tesseract-runtime --help", bar=0.12, note=floor),
    ]  # fmt: skip


def _interleaved(
    commands: dict[str, list[str]], environment: dict[str, str], folder: str
) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(
                command, env=environment, cwd=folder, check=True, capture_output=True, timeout=120
            )
            if turn:  # the first turn warms the file cache and the bytecode
                samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in samples.items()}


if __name__ == "__main__":
    show(run())

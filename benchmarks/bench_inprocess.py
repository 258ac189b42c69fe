"""What a component costs over the bare function, in this process: us, tesseract-core, and the floor."""

from __future__ import annotations

import os
import tempfile
import textwrap
from pathlib import Path

import numpy as np

from benchmarks._harness import Row, interleaved, show
from chainrule.runtime import load_component

SOURCE = """
from pydantic import BaseModel
from tesseract_core.runtime import Array, Float64

class InputSchema(BaseModel):
    x: Array[(None,), Float64]

class OutputSchema(BaseModel):
    y: Array[(None,), Float64]

def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=inputs.x)
"""
BAR = 1 / 8
"""For small arrays: the peer shares the memory of large ones with the author, we give him copies."""
_BARRED = 1_000


def run() -> list[Row]:
    from tesseract_core import Tesseract

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tesseract_api.py"
        file.write_text(textwrap.dedent(SOURCE))
        component = load_component(file, config={"output_path": f"{folder}/ours"})
        peer = Tesseract.from_tesseract_api(str(file), output_path=f"{folder}/theirs")
        for size in (1, 1_000, 100_000, 10_000_000):
            rows.append(_row(component, peer, np.random.default_rng(0).normal(size=size)))
        left = os.path.exists(f"{folder}/ours")
    rows.append(Row("files left behind by these calls", int(left), 1, "one", bar=0, unit="files"))
    return rows


def _row(component, peer, x) -> Row:
    payload = {"x": x}
    assert not np.shares_memory(component.apply(payload)["y"], x)

    def bare(x):
        return x

    times = interleaved(
        {
            "floor": lambda: bare(x),
            "us": lambda: component.apply(payload),
            "peer": lambda: peer.apply(payload),
        }
    )
    return Row(
        f"apply of a no-op, {x.size:,} float64, over the bare function",
        times["us"] - times["floor"],
        times["peer"] - times["floor"],
        "tesseract-core 1.15.0",
        bar=BAR if x.size <= _BARRED else None,
        note=f"bare function {1e9 * times['floor']:.0f} ns; arrays are copied once each way",
    )


if __name__ == "__main__":
    show(run())

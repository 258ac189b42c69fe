"""Claim: `import chainrule` costs next to nothing, and loads no JAX."""

import subprocess
import sys

from benchmarks._harness import Row, interleaved, show


def _run(code: str):
    command = [sys.executable, "-c", code]
    return lambda: subprocess.run(command, check=True)


def run() -> list[Row]:
    times = interleaved(
        {
            "us": _run("import chainrule; import sys; assert 'jax' not in sys.modules"),
            "peer": _run("import tesseract_core"),
            "floor": _run("pass"),
        },
        rounds=15,
        min_round_s=0.0,
    )
    return [
        Row("import chainrule", times["us"], times["floor"], "python -c pass", bar=3.0),
        Row("import chainrule", times["us"], times["peer"], "import tesseract_core"),
    ]


if __name__ == "__main__":
    show(run())

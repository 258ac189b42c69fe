"""The same tests on a newer JAX, where an interpreter that has one is at hand."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERPRETER = os.environ.get("CHAINRULE_PYTHON_NEXT")
HARVEST = ("modes", "loops", "branches", "vmap", "wrappers", "substitute", "nonfinite", "stats")


@pytest.mark.skipif(
    INTERPRETER is None,
    reason="set CHAINRULE_PYTHON_NEXT to a Python with a newer JAX, NumPy and pytest",
)
@pytest.mark.slow
def test_on_a_newer_jax():
    rooms = ROOT / "tests" / "_jaxpr", ROOT / "tests" / "harvest"
    files = [*rooms[0].glob("test_*.py"), *(rooms[1] / f"test_{name}.py" for name in HARVEST)]
    command = [
        INTERPRETER, "-m", "pytest", "-q", "-x", "--noconftest", "-c", os.devnull,
        "--rootdir", str(ROOT), "--import-mode=importlib", "-p", "no:cacheprovider",
        *(str(file) for file in files if file.name != Path(__file__).name),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]

"""Tests of the rooms that touch the insides of JAX, on a newer JAX where there is a Python that has one."""

import os
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
INTERPRETER = os.environ.get("CHAINRULE_PYTHON_NEXT")
HARVEST = ("modes", "loops", "branches", "vmap", "wrappers", "substitute", "nonfinite", "stats")
ROOMS = {
    "_jaxpr": [file for file in Path(__file__).parent.glob("test_*.py") if file != Path(__file__)],
    "harvest": [f"test_{name}.py" for name in HARVEST],
    "elimination": ["test_primitives.py", "test_transformations.py", "-k", "control_flow or scan"],
    "stateful": ["test_exactness.py"],
    "bridge": ["test_host_call.py", "test_inline.py"],
}


@pytest.mark.skipif(
    INTERPRETER is None,
    reason="set CHAINRULE_PYTHON_NEXT to a Python with a newer JAX, NumPy and pytest",
)
@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_on_a_newer_jax(room):
    command = [
        INTERPRETER, "-m", "pytest", "-q", "-x", "-c", os.devnull, "--confcutdir", ".",
        "--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider", *ROOMS[room],
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS.parent / "src"),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=TESTS / room, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]

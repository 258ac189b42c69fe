"""Tests of the packages that touch the insides of JAX, on the oldest JAX and, where there is one, the newest.

`make test` sets both up: the newest in an environment of its own, the oldest in a folder that stands before
this environment's packages.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
HARVEST = ("modes", "loops", "branches", "vmap", "wrappers", "substitute", "vmap_of_plant")
PACKAGES = {
    "_jaxpr": [file for file in Path(__file__).parent.glob("test_*.py") if file != Path(__file__)],
    "harvest": [*(f"test_{name}.py" for name in HARVEST), "-k", "not random and not reductions"],
    "elimination": [
        "test_primitives.py",
        "test_transformations.py",
        "-k",
        "control_flow or scan or structure",
    ],
    "stateful": ["test_exactness.py"],
    "bridge": ["test_host_call.py", "test_inline.py"],
}


def newest():
    """A Python, and folders that it looks into first."""
    python = os.environ.get("CHAINRULE_PYTHON_NEXT")
    if python is None or not Path(python).exists():
        pytest.skip("set CHAINRULE_PYTHON_NEXT to a Python with a newer JAX, NumPy and pytest")
    return python, []


def oldest():
    folder = os.environ.get("CHAINRULE_JAX_OLDEST")
    if folder is None or not Path(folder, "jaxlib").exists():
        pytest.skip("set CHAINRULE_JAX_OLDEST to a folder with requirements/oldest-jax.txt in it")
    return sys.executable, [folder]


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("which", [newest, oldest])
def test_on_another_jax(which, package):
    python, folders = which()
    command = [
        python, "-m", "pytest", "-q", "-x", "-c", os.devnull, "--confcutdir", ".", "--rootdir", ".",
        "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "old_jax_names", *PACKAGES[package],
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*folders, str(TESTS.parent / "src"), str(TESTS)]),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=TESTS / package, env=environment, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]

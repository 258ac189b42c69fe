"""What the tests of the bridge share."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest

COMPONENTS = Path(__file__).parent / "components"

_SERVE = """
import sys
from chainrule.serve import serve
serve(sys.argv[1], port=0, workers=2, grace_s=1, on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@contextmanager
def serving(file):
    """The URL of a component, served with two workers."""
    command = [sys.executable, "-c", _SERVE, str(file)]
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def served_url():
    """The URL of the NumPy component."""
    with serving(COMPONENTS / "numpy_component.py") as url:
        yield url


@pytest.fixture(scope="session")
def tagged_url():
    """The URL of the component that tags values."""
    with serving(COMPONENTS / "tagged_component.py") as url:
        yield url

"""What the tests of the bridge share."""

import subprocess
import sys
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


@pytest.fixture(scope="session")
def served_url():
    """The URL of the NumPy component, served with two workers."""
    command = [sys.executable, "-c", _SERVE, str(COMPONENTS / "numpy_component.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()

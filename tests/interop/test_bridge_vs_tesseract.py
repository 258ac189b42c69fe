"""Real Tesseracts in `apply_component`: the numbers of plain JAX, and those of tesseract-jax."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

from bridge import matrix
from chainrule import apply_component
from chainrule.errors import CapabilityError

pytest.importorskip("tesseract_core")
pytestmark = [
    pytest.mark.interop,
    # Raised inside the peer's own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

BRIDGE = Path(__file__).parents[1] / "bridge"


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The NumPy component of the bridge's tests, written for the peer."""
    text = (BRIDGE / "components" / "numpy_component.py").read_text()
    path = tmp_path_factory.mktemp("tesseract") / "tesseract_api.py"
    path.write_text(
        text.replace("from chainrule.runtime import", "from tesseract_core.runtime import")
    )
    return path


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def served(source, tmp_path_factory):
    """A Tesseract behind HTTP, served by its own runtime."""
    from tesseract_core import Tesseract

    port = _free_port()
    output = str(tmp_path_factory.mktemp("output"))
    process = subprocess.Popen(
        [sys.executable, "-m", "tesseract_core.runtime", "serve", "--port", str(port)],
        env={**os.environ, "TESSERACT_API_PATH": str(source), "TESSERACT_OUTPUT_PATH": output},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/health", process)
        yield Tesseract.from_url(url)
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(url, process):
    while process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not start")


def _function(component, **options):
    return lambda x, a: apply_component(component, {"x": x, "a": a}, **options)


@cache
def expected(name):
    return matrix.FIRST_ORDER[name](matrix.reference)


@pytest.mark.parametrize("name", matrix.FIRST_ORDER)
def test_first_order_of_a_served_tesseract(name, served):
    found, wanted = matrix.FIRST_ORDER[name](_function(served)), expected(name)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(
        lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-6, atol=1e-12), found, wanted
    )
    assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(wanted)]


def test_second_order_says_what_is_missing(served):
    with pytest.raises(CapabilityError, match="hessian_vector_product"):
        matrix.SECOND_ORDER["hessian"](_function(served))


@pytest.fixture(scope="module")
def in_process(source):
    from tesseract_core import Tesseract

    return Tesseract.from_tesseract_api(source)


@pytest.mark.parametrize(
    "name", ["eager", "jit", "jit_of_grad", "jvp", "jacrev", "vmap", "grad_of_scan", "checkpoint"]
)
def test_in_process_equals_tesseract_jax(name, in_process):
    from tesseract_jax import apply_tesseract

    def peer(x, a):
        return apply_tesseract(in_process, {"x": x, "a": a}, vmap_method="sequential")

    found = matrix.FIRST_ORDER[name](_function(in_process))
    wanted = matrix.FIRST_ORDER[name](peer)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-12), found, wanted)


def test_what_fails_there_works_here(in_process):
    """An input in another dtype than the schema's, and `vmap` with nothing said about it."""
    f = _function(in_process)
    x, a = matrix.batch()
    gradient = jax.jit(jax.grad(lambda x: f(x, a[0])["s"]))(x[0].astype("float32"))
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, 2 * a[0] * x[0], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f)(x, a)["s"], a * (x * x).sum(1), rtol=1e-12)

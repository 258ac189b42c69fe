"""The peer's `cuda_ipc` between its packages and ours, on a GPU or on the fake one."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import orjson
import pytest

from chainrule.client import Component
from device.fake import buffers_of
from device.gpu import ON_GPU, SOURCE, serving

pytest.importorskip("tesseract_core")
from tesseract_core import Tesseract
from tesseract_core.runtime.array_encoding import EncodedArrayModel

from device.peer import install_for_peer

X = np.linspace(0.5, 2.0, 5000).astype("float32")

PEER = """
import os

import numpy as np
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32
from tesseract_core.runtime.cuda.ipc import IpcDeviceArray, _device_array_from_bytes

if "CHAINRULE_FAKE_GPU" in os.environ:
    from device.fake import FakeDevice
    from device.peer import install_for_peer

    install_for_peer(FakeDevice())


class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float32]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float32]]


def _on_device(values):
    found = _device_array_from_bytes(values.tobytes(), 0)
    found.shape, found.dtype = values.shape, values.dtype
    return found


def apply(inputs: InputSchema) -> OutputSchema:
    assert isinstance(inputs.x, IpcDeviceArray)
    return OutputSchema(y=_on_device(3 * inputs.x.copy_to_host() ** 2))


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    slope = 6 * inputs.x.copy_to_host() * cotangent_vector["y"].copy_to_host()
    return {"x": _on_device(slope)}


def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x}
"""


@pytest.fixture(scope="module", autouse=True)
def peer_has_the_gpu(gpu):
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            install_for_peer(gpu.device, patch.setattr)
        yield


@pytest.fixture(scope="module")
def served(gpu):
    with serving() as url:
        yield url


@pytest.fixture(scope="module")
def peer(gpu, tmp_path_factory):
    """A Tesseract with `gpu_transport=cuda_ipc`."""
    folder: Path = tmp_path_factory.mktemp("peer")
    (folder / "tesseract_api.py").write_text(PEER)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "TESSERACT_API_PATH": str(folder / "tesseract_api.py"),
        "TESSERACT_NAME": "peer",
        "TESSERACT_OUTPUT_PATH": str(folder),
        "TESSERACT_GPU_TRANSPORT": "cuda_ipc",
    }
    command = [sys.executable, "-c", "from tesseract_core.runtime.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "serve", "--port", str(port)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=60).close()
                break
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()
        for path in buffers_of(process.pid):
            path.unlink()


def test_its_client_finds_the_transport_and_uses_it(gpu, served):
    with Tesseract.from_url(served) as tesseract:
        assert tesseract.resolve_gpu_transport() == "cuda_ipc"
        by_reference = tesseract.with_encoding(gpu_transport="cuda_ipc")
        for number in range(1, 5):
            given = gpu.put(number * X)
            found = by_reference.apply({"x": given})["y"]
            np.testing.assert_allclose(found.copy_to_host(), 3 * (number * X) ** 2, rtol=1e-6)
            products = by_reference.vector_jacobian_product(
                {"x": given}, ["x"], ["y"], {"y": given}
            )
            np.testing.assert_allclose(
                products["x"].copy_to_host(), 6 * (number * X) ** 2, rtol=1e-6
            )
        through_host = tesseract.with_encoding(gpu_transport="none").apply({"x": X})["y"]
        np.testing.assert_allclose(through_host, 3 * X**2, rtol=1e-6)


def test_exports_are_used_again_when_its_client_is_done(gpu, served):
    worker = next(w["pid"] for w in Component.from_url(served).transport.server.status()["workers"])
    with Tesseract.from_url(served) as tesseract:
        by_reference = tesseract.with_encoding(gpu_transport="cuda_ipc")
        by_reference.apply({"x": gpu.put(X)})
        by_reference.apply({"x": gpu.put(X)})
        before = buffers_of(worker), gpu.used_bytes
        for _ in range(300 if ON_GPU else 20):
            by_reference.apply({"x": gpu.put(X)})
        assert buffers_of(worker) == before[0]
        assert gpu.used_bytes <= before[1] + 2**26 * ON_GPU


def test_what_it_sends_is_what_its_models_say(gpu, served):
    body = orjson.dumps({"inputs": {"x": X.tolist()}})
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json; gpu_transport=cuda_ipc",
    }
    # Arrays of the host are answered with arrays of the host.
    request = urllib.request.Request(f"{served}/apply", body, headers)
    with urllib.request.urlopen(request) as answer:
        found = orjson.loads(answer.read())["y"]
    assert found["data"]["encoding"] == "json"
    assert EncodedArrayModel.model_validate(found).shape == X.shape


def test_our_client_exchanges_memory_with_its_server(gpu, peer):
    with contextlib.closing(Component.from_url(peer)) as component:
        uploads = getattr(gpu.library, "uploads", 0)
        for number in range(1, 6):
            given = gpu.put(number * X)
            found = component.apply({"x": given})["y"]
            np.testing.assert_allclose(gpu.get(found), 3 * (number * X) ** 2, rtol=1e-6)
            products = component.vector_jacobian_product({"x": given}, ["x"], ["y"], {"y": given})
            np.testing.assert_allclose(gpu.get(products["x"]), 6 * (number * X) ** 2, rtol=1e-6)
        if not ON_GPU:
            assert gpu.library.uploads == uploads + 1 + 5  # the check, and `put`
        assert component.transport.device_library() is gpu.library
        sent = component.transport._devices.link().exchange
        described = sent.write(gpu.put(X), sent.pool.take(X.nbytes))
        assert re.fullmatch(r"[0-9a-f-]{36}:[A-Za-z0-9+/=]{88}:0:\d+", described.place)
        encoded = {
            "object_type": "array", "shape": list(described.shape), "dtype": described.dtype,
            "data": {"buffer": described.place, "encoding": "cuda_ipc"},
        }  # fmt: skip
        assert EncodedArrayModel.model_validate(encoded).data.encoding == "cuda_ipc"


def test_a_server_without_a_gpu_says_none():
    document = Component.from_source(SOURCE.parents[1] / "client" / "some_component.py")
    with contextlib.closing(document) as component:
        assert component.openapi_schema["x-supported-gpu-transports"] == ["none"]

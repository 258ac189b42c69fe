"""What a component says about its device, on a machine that has none."""

import logging

import numpy as np
import pytest

from chainrule import component
from chainrule.errors import CapabilityError, DefinitionError
from chainrule.runtime import Array, Differentiable, Float32
from device.gpu import gpus

torch = pytest.importorskip("torch")
Vector = Differentiable[Array[("n",), Float32]]

without_gpu = pytest.mark.skipif(
    bool(gpus()) or torch.cuda.is_available(), reason="there is a GPU here"
)


def doubled(x: Vector) -> Vector:
    return 2 * x


@without_gpu
def test_a_component_for_a_gpu_runs_on_the_cpu(caplog):
    with caplog.at_level(logging.WARNING, "chainrule"):
        on_cpu = component(framework="torch", device="cuda")(doubled)
    assert "runs on the CPU" in caplog.text
    assert on_cpu.device == "cpu"
    np.testing.assert_array_equal(on_cpu.apply({"x": [1.0, 2.0]})["result"], [2.0, 4.0])
    np.testing.assert_array_equal(
        on_cpu.vector_jacobian_product({"x": [1.0]}, ["x"], ["result"], {"result": [1.0]})["x"],
        [2.0],
    )


@without_gpu
def test_a_component_that_insists_says_so_when_it_is_made():
    with pytest.raises(DefinitionError, match="none is usable here") as caught:
        component(framework="torch", device="cuda-only")(doubled)
    assert caught.value.code == "no_device"


@pytest.mark.parametrize("options", [
    {"framework": "torch", "device": "gpu"},
    {"framework": "numpy", "device": "cuda"},
    {"framework": "jax", "device": "cuda"},
    {"device": "cuda"},
])  # fmt: skip
def test_declarations_without_a_meaning(options):
    with pytest.raises(DefinitionError) as caught:
        component(**options)(doubled)
    assert caught.value.code == "bad_device"


def test_a_framework_that_is_not_installed():
    pytest.importorskip("torch")
    try:
        import cupy  # noqa: F401

        pytest.skip("CuPy is installed")
    except ModuleNotFoundError:
        pass
    with pytest.raises(CapabilityError, match="needs the package cupy") as caught:
        component(framework="cupy")(doubled)
    assert caught.value.code == "missing_dependency"

"""The way of device arrays through the bridge, with a library whose "device" is the memory of the host.

JAX's `buffer_callback` also exists on the CPU, so that real compiled programs hand over real buffers.
"""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule import apply_component, component_errors
from chainrule.runtime import Array, Differentiable, Float32, WithResiduals, load_component
from device.fake import STREAM, UUID, DeviceArray, hand_over_buffers, install
from device.gpu import gpus

pytestmark = pytest.mark.skipif(
    bool(gpus()), reason="there is a GPU here: see test_torch_components.py"
)
Vector = Differentiable[Array[("n",), Float32]]


@pytest.fixture
def library(monkeypatch):
    fake, _ = install(monkeypatch.setattr)
    hand_over_buffers(monkeypatch.setattr)
    return fake


class InputSchema(BaseModel):
    x: Vector
    factor: float = 3.0


class OutputSchema(BaseModel):
    y: Vector


def module(**changes):
    """A component written by hand: y = factor x², with everything that an author may write."""
    kept = []

    def apply(inputs):
        assert isinstance(inputs.x, DeviceArray)
        kept.append(inputs.x)
        return {"y": inputs.factor * (inputs.x * inputs.x)}

    def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
        return {"y": 2 * inputs.factor * (inputs.x * tangent_vector["x"])}

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return {"x": 2 * inputs.factor * (inputs.x * cotangent_vector["y"])}

    made = types.ModuleType("square")
    parts = {
        "InputSchema": InputSchema,
        "OutputSchema": OutputSchema,
        "framework": "device",
        "device": "cuda",
        "apply": apply,
        "jacobian_vector_product": jacobian_vector_product,
        "vector_jacobian_product": vector_jacobian_product,
        "abstract_eval": lambda inputs: {"y": inputs.x},
        "kept": kept,
    }
    for name, part in (parts | changes).items():
        setattr(made, name, part)
    return made


def function_of(made):
    loaded = load_component(made)
    return lambda x: apply_component(loaded, {"x": x})["y"]


X = jnp.linspace(0.5, 2.0, 6)


def test_buffers_are_handed_over_on_the_stream(library):
    program = jax.jit(lambda x: function(x) + x)
    function = function_of(module())
    for number in range(1, 4):
        np.testing.assert_allclose(
            program(number * X), 3 * (number * X) ** 2 + number * X, rtol=1e-6
        )
    assert library.streams == [STREAM] * 3
    assert library.uploads == 0


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: lambda x: jax.grad(lambda x: (f(x) ** 2).sum())(x[0]),
        lambda f: lambda x: jax.jvp(f, (x[0],), (x[1],))[1],
        lambda f: jax.vmap(f),
        lambda f: jax.vmap(lambda row: jax.vjp(f, row)[1](row)[0]),
        lambda f: lambda x: jax.vmap(lambda t: jax.jvp(f, (x[0],), (t,))[1])(x),
        lambda f: lambda x: jax.jacrev(f)(x[0]),
        lambda f: lambda x: jax.jacfwd(f)(x[0]),
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c) / 9, None), x[0], None, 3)[0],
    ],
    ids=["grad", "jvp", "vmap", "vmap of vjp", "vmap of vectors", "jacrev", "jacfwd", "scan"],
)
def test_transformations(library, transformed):
    function, reference = function_of(module()), lambda x: 3 * x**2
    x = jnp.stack([X, 2 * X])
    found = jax.jit(transformed(function))(x)
    np.testing.assert_allclose(found, transformed(reference)(x), rtol=1e-5)
    assert set(library.streams) == {STREAM}


def test_derivatives_that_are_made_of_others_go_by_the_host(library):
    made = module()
    del made.jacobian_vector_product
    function = function_of(made)
    pushed = jax.jit(lambda x: jax.jvp(function, (x,), (x,))[1])(X)
    np.testing.assert_allclose(pushed, 6 * X * X, rtol=1e-6)
    assert library.uploads > 0


def test_what_an_author_keeps_is_not_memory_of_xla(library):
    made = module()
    program = jax.jit(function_of(made))
    for number in range(5):
        jax.block_until_ready(program(X + number))
    for number, kept in enumerate(made.kept):
        np.testing.assert_array_equal(kept.get(), X + number)


def test_failures_say_what_the_author_raised(library):
    def fail(inputs):
        raise ArithmeticError("no convergence")

    program = jax.jit(function_of(module(apply=fail)))
    for _ in range(2):
        with pytest.raises(Exception, match="no convergence"), component_errors():
            jax.block_until_ready(program(X))


def test_a_result_of_another_shape_is_refused(library):
    program = jax.jit(function_of(module(apply=lambda inputs: {"y": inputs.x[:2]})))
    with pytest.raises(Exception, match="size 6 in x but size 2 in y"):
        jax.block_until_ready(program(X))


def test_arrays_of_the_host_go_there_and_back(library):
    loaded = load_component(module())
    found = loaded.apply({"x": np.asarray(X)})["y"]
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, 3 * X**2, rtol=1e-6)
    assert loaded.device == "cuda"
    assert loaded.openapi_schema["x-device"] == "cuda"
    given = DeviceArray(np.array(X))
    assert isinstance(loaded.apply({"x": given})["y"], DeviceArray)
    assert loaded.capabilities["apply"].on_device
    assert not loaded.capabilities["jacobian"].on_device


def test_residuals_stay_on_the_device(library):
    passes = []

    def apply(inputs):
        passes.append(1)
        return WithResiduals(
            {"y": inputs.factor * (inputs.x * inputs.x)}, 2 * inputs.factor * inputs.x
        )

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals):
        assert isinstance(residuals, DeviceArray)
        return {"x": residuals * cotangent_vector["y"]}

    made = module(apply=apply, vector_jacobian_product=vector_jacobian_product)
    del made.jacobian_vector_product
    function = function_of(made)
    program = jax.jit(jax.value_and_grad(lambda x: function(x).sum()))
    for number in range(1, 4):
        np.testing.assert_allclose(program(number * X)[1], 6 * number * X, rtol=1e-6)
    assert len(passes) == 3


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_commands_show_the_device(command):
    source = Path(__file__).with_name("exchanged.py")
    environment = {
        **os.environ,
        "CHAINRULE_FAKE_GPU": UUID,
        "PYTHONPATH": os.pathsep.join([str(source.parents[1]), *sys.path]),
    }
    found = subprocess.run(
        [sys.executable, "-m", "chainrule", command, str(source), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout)["device"] == "cuda"

"""Copies and pickles of components, and of what holds them."""

import copy
import importlib.util
import pickle
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule
import chainrule.stateful as cs
from chainrule.runtime import Array, Differentiable, Float32, component, load_component

Vector = Differentiable[Array[("n",), Float32]]
X = {"x": np.array([0.5, 2.0], np.float32)}


@component(derivatives="finite")
def numpy_wave(x: Vector) -> Vector:
    return np.sin(x)


@component(framework="jax")
def jax_wave(x: Vector) -> Vector:
    return jnp.sin(x)


@component
@jax.jit
def jitted_wave(x: Vector) -> Vector:
    return jnp.sin(x)


def _named_otherwise(x: Vector) -> Vector:
    return np.sin(x)


other_name = component(_named_otherwise)


class Holder:
    @component
    @staticmethod
    def wave(x: Vector) -> Vector:
        return np.sin(x)


WAVES = [numpy_wave, jax_wave, jitted_wave, other_name, Holder.wave]
if importlib.util.find_spec("torch"):

    @component(framework="torch")
    def torch_wave(x: Vector) -> Vector:
        import torch

        return torch.sin(x)

    WAVES.append(torch_wave)

COPIES = [copy.copy, copy.deepcopy, lambda wave: pickle.loads(pickle.dumps(wave))]


@pytest.mark.parametrize("wave", WAVES, ids=lambda wave: wave.name)
@pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_copies_are_the_component_itself_like_those_of_a_function(wave, copied):
    assert copied(wave) is wave
    expected = wave.apply(X)["result"]
    assert wave.openapi_schema  # what is made on first use does not matter
    if wave.capabilities["vector_jacobian_product"].status != "absent":
        wave.vector_jacobian_product(X, ["x"], ["result"], {"result": np.ones(2, np.float32)})
    np.testing.assert_array_equal(copied(wave).apply(X)["result"], expected)
    assert copied(wave) is wave


def test_settings_are_part_of_a_pickle():
    other = numpy_wave.configured(name="other")
    received = pickle.loads(pickle.dumps(other))
    assert received.name == "other"
    assert received.config == other.config
    assert copy.deepcopy(other) is other


@pytest.mark.parametrize("copied", COPIES[1:], ids=["deepcopy", "pickle"])
def test_models_and_handles_that_hold_a_component_are_copied(copied):
    net = cs.Module()
    net.scale, net.wave, net.more = cs.Param(jnp.ones(2)), numpy_wave, [jax_wave]
    call = cs.jit(
        lambda *, net: chainrule.apply_component(net.wave, {"x": net.scale.value})["result"]
    )
    expected = call(net=net)
    other = copied(net)
    assert other.wave is numpy_wave
    assert other.more[0] is jax_wave
    np.testing.assert_array_equal(call(net=other), expected)
    handle = copied(chainrule.Component.from_api(numpy_wave))
    np.testing.assert_array_equal(copied(handle).apply(X)["result"], numpy_wave.apply(X)["result"])


def test_what_cannot_be_imported_is_refused_in_words():
    @component
    def inner(x: Vector) -> Vector:
        return x

    assert copy.deepcopy([inner])[0] is inner
    with pytest.raises(pickle.PicklingError, match=r"component inner.*top level of a module"):
        pickle.dumps(inner)
    command = chainrule.runtime.from_command(
        [sys.executable], inputs={"x": "float64[n]"}, outputs={"y": "float64[n]"}, name="run"
    )
    with pytest.raises(pickle.PicklingError, match="component run"):
        pickle.dumps(command)


FILES = {
    "decorated.py": """
        from chainrule.runtime import Array, Float64, component
        @component
        def double(x: Array[("n",), Float64]) -> Array[("n",), Float64]:
            return 2 * x
        """,
    "tesseract_api.py": """
        from pydantic import BaseModel
        from tesseract_core.runtime import Array, Float64
        class InputSchema(BaseModel):
            x: Array[("n",), Float64]
        class OutputSchema(BaseModel):
            result: Array[("n",), Float64]
        def apply(inputs: InputSchema) -> OutputSchema:
            return OutputSchema(result=2 * inputs.x)
        """,
}


@pytest.mark.parametrize("name", FILES)
def test_a_component_of_a_file_is_loaded_from_there_by_another_process(tmp_path, name):
    file = tmp_path / name
    file.write_text(textwrap.dedent(FILES[name]))
    double = load_component(file)
    load_component(file)  # the number of a private package counts in one process
    program = (
        "import pickle, sys; component = pickle.load(sys.stdin.buffer); "
        "print(component.name, component.apply({'x': [1.0]})['result'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(double), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == f"{double.name} [2.]"


def test_an_imported_module_is_imported_again(tmp_path, monkeypatch):
    source = textwrap.dedent(FILES["tesseract_api.py"]).replace("tesseract_core", "chainrule")
    (tmp_path / "imported_double.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import imported_double

    double = load_component(imported_double, config={"version": "3"})
    received = pickle.loads(pickle.dumps(double))
    assert (received.name, received.version) == ("imported_double", "3")
    monkeypatch.delitem(sys.modules, "imported_double")


def test_the_hash_of_a_function_holds_the_content_of_a_component_it_closes_over(monkeypatch):
    def hash_around(inner):
        @component
        def outer(x: Vector) -> Vector:
            return inner(x)

        return outer.content_hash

    def rewritten(x: Vector) -> Vector:
        return np.cos(x)

    before = hash_around(other_name)
    assert hash_around(other_name) == before
    rewritten.__qualname__ = "_named_otherwise"
    new = component(rewritten)
    monkeypatch.setitem(globals(), "other_name", new)
    assert pickle.loads(pickle.dumps(new)) is new
    assert hash_around(new) != before

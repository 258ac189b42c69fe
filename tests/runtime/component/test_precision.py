"""A component that declares 64 bits computes in 64 bits, in a process that has not enabled x64."""

import json
import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule
from chainrule._codec import decode_array
from chainrule.bridge import PrecisionWarning
from chainrule.client import Component
from chainrule.runtime import (
    Array,
    Differentiable,
    Float32,
    Float64,
    Int64,
    component,
    load_component,
)
from chainrule.runtime.testing import check_gradients

SCHEMAS = """
import jax
import jax.numpy as jnp
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]

# A constant of the file; 0.1 is another number in 32 bits.
RATE = jnp.array(0.1)

@jax.jit
def apply_jit(inputs):
    return {"y": RATE * inputs["x"] ** 3 / 3}
"""

RECIPES = """
from chainrule.runtime.jax_recipes import jax_apply, jax_jacobian, jax_vjp

def apply(inputs):
    return jax_apply(apply_jit, inputs)

def jacobian(inputs, jac_inputs, jac_outputs):
    return jax_jacobian(apply_jit, inputs, jac_inputs, jac_outputs)

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)
"""

BY_HAND = """
def apply(inputs):
    return OutputSchema(y=apply_jit({"x": jnp.asarray(inputs.x)})["y"])

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    _, pull = jax.vjp(lambda x: apply_jit({"x": x})["y"], jnp.asarray(inputs.x))
    return {"x": pull(jnp.asarray(cotangent_vector["y"]))[0]}
"""

DECORATED = """
import jax.numpy as jnp
from chainrule.runtime import Array, Differentiable, Float64, component
from typing import TypedDict

Vector = Differentiable[Array[(None,), Float64]]
RATE = jnp.array(0.1)

class Result(TypedDict):
    y: Vector

@component(framework="jax")
def cubic(x: Vector) -> Result:
    return {"y": RATE * x**3 / 3}
"""

FILES = {
    "recipes": SCHEMAS + RECIPES,
    "by_hand": SCHEMAS + BY_HAND,
    "decorated": DECORATED,
}
X = np.array([0.7, 1.0 / 3.0, 1e-3])


@pytest.fixture(scope="module", params=list(FILES))
def source(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("precision") / f"{request.param}.py"
    file.write_text(FILES[request.param])
    return file


@pytest.fixture(autouse=True)
def _without_x64():
    assert not jax.config.jax_enable_x64
    yield
    assert not jax.config.jax_enable_x64


def assert_exact(found, expected):
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def assert_computes_in_double_precision(subject):
    """Every endpoint of y = 0.1 x³ / 3, against the closed form in NumPy."""
    at, paths = {"x": X}, (["x"], ["y"])
    u, v = np.array([1.0, 0.1, -2.0]), np.array([0.3, 1.0, 1.0])
    slope, curvature = 0.1 * X**2, 0.2 * X
    assert_exact(subject.apply(at)["y"], 0.1 * X**3 / 3)
    assert_exact(subject.jacobian(at, *paths)["y"]["x"], np.diag(slope))
    assert_exact(subject.jacobian_vector_product(at, *paths, {"x": v})["y"], slope * v)
    assert_exact(subject.vector_jacobian_product(at, *paths, {"y": u})["x"], slope * u)
    batch = subject.vector_jacobian_product(at, *paths, {"y": np.stack([u, v])}, batched=True)
    assert_exact(batch["x"], slope * np.stack([u, v]))
    both = subject.value_and_vjp(at, *paths, {"y": u})
    assert_exact(both["outputs"]["y"], 0.1 * X**3 / 3)
    assert_exact(both["gradient"]["x"], slope * u)
    if "hessian_vector_product" in subject.available_endpoints:
        hvp = subject.hessian_vector_product(at, *paths, {"y": u}, {"x": v})
        assert_exact(hvp["x"], curvature * u * v)
    if "abstract_eval" in subject.available_endpoints:
        shape = subject.abstract_eval({"x": {"shape": [3], "dtype": "float64"}})["y"]
        assert shape["dtype"] == "float64"


def test_in_this_process(source):
    assert_computes_in_double_precision(load_component(source))
    assert jnp.ones(1).dtype == jnp.float32


def test_in_a_process_of_its_own(tmp_path):
    source = tmp_path / "recipes.py"
    source.write_text(FILES["recipes"])
    with Component.from_source(source) as served:
        assert_computes_in_double_precision(served)


def test_in_another_thread(source):
    loaded, found = load_component(source), []
    thread = threading.Thread(target=lambda: found.append(loaded.apply({"x": X})))
    thread.start()
    thread.join()
    assert_exact(found[0]["y"], 0.1 * X**3 / 3)


def test_on_the_command_line(tmp_path):
    source = tmp_path / "decorated.py"
    source.write_text(FILES["decorated"])
    payload = json.dumps({"inputs": {"x": X.tolist()}})
    command = [sys.executable, "-m", "chainrule"]
    run = {"capture_output": True, "text": True, "check": True, "timeout": 120}
    result = subprocess.run([*command, "apply", str(source), payload], **run).stdout
    np.testing.assert_allclose(decode_array(json.loads(result)["y"]), 0.1 * X**3 / 3, rtol=1e-14)


def test_checks_pass_at_the_precision_that_is_declared(source):
    report = check_gradients(load_component(source), {"x": X}, rtol=1e-6, show_progress=False)
    assert report.passed, [check.summary for check in report.failures]


def test_x64_is_not_left_on_after_a_failure():
    @component(framework="jax")
    def fails(x: Float64) -> Float64:
        raise RuntimeError("no")

    with pytest.raises(chainrule.ChainruleError):
        fails.apply({"x": 1.0})


def test_integers_of_64_bits():
    @component(framework="jax")
    def successor(n: Int64) -> Int64:
        return n + 1

    assert successor.apply({"n": 2**40})["result"] == 2**40 + 1


def test_components_of_32_bits_are_left_alone():
    seen = []

    @component(framework="jax")
    def ones(x: Differentiable[Array[(2,), Float32]]) -> Differentiable[Array[(2,), Float32]]:
        seen.append(jnp.ones(2).dtype)
        return x + jnp.ones(2)

    ones.apply({"x": [1.0, 2.0]})
    assert set(seen) == {jnp.dtype("float32")}


def test_inside_a_program_in_32_bits():
    @component(framework="jax")
    def third(x: Differentiable[Float64]) -> Differentiable[Float64]:
        return x / 3

    # The caller's arrays have 32 bits, so the component is traced in 32 bits, with a warning.
    with pytest.warns(PrecisionWarning):
        value, slope = jax.jit(
            jax.value_and_grad(lambda x: chainrule.apply_component(third, {"x": x})["result"])
        )(jnp.float32(1.0))
    assert value.dtype == slope.dtype == jnp.float32
    np.testing.assert_allclose([value, slope], 1 / 3, rtol=1e-6)
    # The same component, called directly, has 64 bits; with x64 both have.
    assert third.apply({"x": 1.0})["result"] == 1 / 3
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        slope = jax.grad(lambda x: chainrule.apply_component(third, {"x": x})["result"])(1.0)
        assert slope == 1 / 3


MIXED = """
import jax.numpy as jnp
from jax import lax
from chainrule.runtime import Array, Differentiable, Float64, component

Vector = Differentiable[Array[(2,), Float64]]
RATE = jnp.array([0.1, 0.2])

@component(framework="jax")
def scale(x: Vector) -> Vector:
    return lax.cond(x[0] > 0, lambda: lax.mul(x, RATE), lambda: RATE)
"""


def test_constants_of_a_file_inside_a_program_in_32_bits(tmp_path):
    """The operations of `jax.lax` do not mix 32 and 64 bits; arrays of the caller have 32."""
    file = tmp_path / "mixed.py"
    file.write_text(MIXED)
    scale = load_component(file)
    total = jax.jit(jax.grad(lambda x: chainrule.apply_component(scale, {"x": x})["result"].sum()))
    with pytest.warns(PrecisionWarning):
        slope = total(jnp.array([1.0, 2.0]))
    assert slope.dtype == jnp.float32
    np.testing.assert_allclose(slope, [0.1, 0.2], rtol=1e-6)
    assert_exact(scale.apply({"x": [1.0, 2.0]})["result"], np.array([0.1, 0.4]))
    with jax.enable_x64(True):
        assert_exact(np.asarray(total(jnp.array([1.0, 2.0]))), np.array([0.1, 0.2]))


def test_a_component_called_on_the_host_of_a_program_in_32_bits(tmp_path):
    file = tmp_path / "by_hand.py"
    file.write_text(FILES["by_hand"])
    with Component.from_source(file) as served, pytest.warns(PrecisionWarning):
        value = jax.jit(lambda x: chainrule.apply_component(served, {"x": x})["y"])(
            jnp.asarray(X, jnp.float32)
        )
    np.testing.assert_allclose(value, 0.1 * X**3 / 3, rtol=1e-6)


# Where 0.1 may be when the file has been loaded: each of them is another number in 32 bits.
CONSTANTS = {
    "closure": "def make():\n    rate = jnp.array(0.1)\n    return lambda: rate\nrate = make()\n",
    "object": "class Rate:\n    def __init__(self):\n        self.value = jnp.array(0.1)\n"
    "    def __call__(self):\n        return self.value\nrate = Rate()\n",
    "number": "number = float(jnp.array(0.1))\ndef rate():\n    return number\n",
    "numpy": "import numpy as np\narray = np.asarray(jnp.array(0.1))\ndef rate():\n    return array\n",
    "neighbour": "from constants_beside import rate\n",
    "equinox": "import equinox\nmodel = equinox.nn.Linear('scalar', 'scalar', key=jax.random.key(0))\n"
    "array = equinox.tree_at(lambda m: m.bias, model, jnp.array([0.1]))\n"
    "def rate():\n    return array.bias[0]\n",
}
SCALE = """
class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]

@jax.jit
def apply_jit(inputs):
    return {"y": rate() * inputs["x"]}

def apply(inputs):
    return OutputSchema(**apply_jit({"x": inputs.x}))
"""
IMPORTS = """
import jax
import jax.numpy as jnp
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64
"""


@pytest.mark.parametrize("place", CONSTANTS)
def test_constants_that_are_computed_while_the_file_is_loaded(place, tmp_path):
    (tmp_path / "constants_beside.py").write_text(IMPORTS + CONSTANTS["closure"])
    file = tmp_path / "scale.py"
    file.write_text(IMPORTS + CONSTANTS[place] + SCALE)
    assert_exact(load_component(file).apply({"x": X})["y"], 0.1 * X)


def test_constants_of_a_file_that_imports_only_a_package_built_on_jax(tmp_path):
    file = tmp_path / "scale.py"
    file.write_text(
        "from chainrule.stateful import Param\nfrom chainrule.runtime import Float64, component\n"
        "rate = Param(0.1)\n\n@component\ndef scale(x: Float64) -> Float64:\n"
        "    return x * rate.get()\n"
    )
    assert load_component(file).apply({"x": 1.0})["result"] == 0.1


def test_files_without_jax_are_loaded_once(tmp_path):
    file = tmp_path / "count.py"
    file.write_text(
        "import sys\nimport numpy as np\nfrom chainrule.runtime import Float64, component\n"
        "sys.loads_of_this_file = getattr(sys, 'loads_of_this_file', 0) + 1\n\n"
        "@component\ndef count(x: Float64) -> Float64:\n    return sys.loads_of_this_file + 0 * x\n"
    )
    try:
        assert load_component(file).apply({"x": 1.0})["result"] == 1
    finally:
        del sys.loads_of_this_file


def test_jax_imported_by_the_first_call(tmp_path):
    file = tmp_path / "late.py"
    file.write_text(
        "from chainrule.runtime import Float64, component\n\n@component\n"
        "def third(x: Float64) -> Float64:\n    import jax.numpy as jnp\n    return jnp.asarray(x) / 3\n"
    )
    program = (
        "import sys\nfrom chainrule.runtime import load_component\n"
        f"third = load_component({str(file)!r})\nassert 'jax' not in sys.modules\n"
        "print(*(third.apply({'x': 1.0})['result'] == 1 / 3 for _ in range(2)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.split() == ["True", "True"], run.stderr


def test_jax_imported_by_a_first_call_that_overwrites_its_inputs(tmp_path):
    """The call is repeated in 64 bits, with the inputs as they were, also where the caller gave them away."""
    file = tmp_path / "late.py"
    file.write_text(
        "from chainrule.runtime import Array, Float64, component\n\n@component\n"
        "def twice(x: Array[(2,), Float64]) -> Array[(2,), Float64]:\n"
        "    import jax.numpy as jnp\n    x *= 2\n    return jnp.asarray(x)\n"
    )
    program = (
        "import numpy as np\nfrom chainrule.runtime import load_component\n"
        f"payload = {{'inputs': {{'x': np.ones(2)}}}}\ntwice = load_component({str(file)!r})\n"
        "print(*twice.call('apply', payload, copy_inputs=False)['result'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.split() == ["2.0", "2.0"], run.stderr


def test_tables_whose_keys_cannot_be_compared(tmp_path):
    path = tmp_path / "table.py"
    path.write_text(
        "import jax\nfrom pydantic import BaseModel\n"
        "TABLE = {1: 'one', 'two': 2}\n"
        "class InputSchema(BaseModel):\n    x: float\n"
        "class OutputSchema(BaseModel):\n    x: float\n"
        "def apply(inputs):\n    return {'x': inputs.x}\n"
    )
    assert load_component(path).apply({"x": 2.0})["x"] == 2.0

"""The public names of the runtime, and what they cost."""

import subprocess
import sys

import pytest

import chainrule
import chainrule.runtime as runtime
from chainrule.runtime import experimental

TYPES = {
    "Array", "ArraySpec", "BFloat16", "Bool", "Bounds", "Complex64", "Complex128", "Differentiable",
    "Float16", "Float32", "Float64", "Int8", "Int16", "Int32", "Int64", "ShapeDType", "UInt8", "UInt16",
    "UInt32", "UInt64",
}  # fmt: skip
COMPONENTS = {
    "Capability", "LocalComponent", "component", "from_command", "from_fmu", "from_onnx", "load_component",
}  # fmt: skip
REST = {
    "ComponentConfig", "Grants", "Limits", "SparseArray", "WithResiduals", "decode_body", "encode_body",
    "progress",
}  # fmt: skip


def test_the_runtimes_names_are_exactly_these():
    assert set(runtime.__all__) == set(dir(runtime)) == TYPES | COMPONENTS | REST
    assert chainrule.component is runtime.component
    with pytest.raises(AttributeError):
        runtime.nonsense


@pytest.mark.parametrize("name", sorted(runtime.__all__))
def test_every_name_resolves(name):
    assert getattr(runtime, name) is not None


def test_both_names_of_a_reference():
    assert experimental.TesseractReference is experimental.ComponentReference
    assert all(hasattr(experimental, name) for name in experimental.__all__)


def test_a_numpy_component_pays_for_numpy_and_pydantic_only(tmp_path):
    (tmp_path / "component.py").write_text(
        "import chainrule\n"
        "from chainrule.runtime import Array, Float64\n"
        "@chainrule.component\n"
        "def double(x: Array[(None,), Float64]) -> Array[(None,), Float64]:\n"
        "    return 2 * x\n"
    )
    code = (
        "import sys\n"
        "from chainrule.runtime import load_component\n"
        "assert load_component('component.py').apply({'x': [1.0]})['result'] == [2.0]\n"
        "heavy = ('jax', 'torch', 'equinox', 'yaml', 'rich', 'ssl', 'mlflow', 'starlette', 'numpy.ma')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"

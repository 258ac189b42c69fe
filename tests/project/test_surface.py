"""The public surface: small, lazy, and exactly what is written here."""

import importlib
import subprocess
import sys

import pytest

import chainrule

TOP_LEVEL = {
    "ChainruleError",
    "Component",
    "ComponentError",
    "InputError",
    "__version__",
    "apply_component",
    "component",
    "component_errors",
    "fixed_point",
    "from_callable",
    "grad_wrt",
    "intermediate_stats",
    "jacobian",
    "least_squares",
    "locate_nonfinite",
    "minimize",
    "plan_jacobian",
    "plant",
    "save_intermediates",
    "sow",
    "watch",
}


def test_top_level_names_are_exactly_these():
    assert set(chainrule.__all__) == TOP_LEVEL
    assert set(dir(chainrule)) == TOP_LEVEL


@pytest.mark.parametrize("name", sorted(TOP_LEVEL))
def test_every_name_resolves(name):
    assert getattr(chainrule, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        chainrule.nonsense


def test_import_loads_nothing_heavy():
    code = (
        "import sys, chainrule; "
        "heavy = {'jax', 'numpy', 'pydantic', 'torch', 'starlette', 'rich', 'typer'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_runtime_imports_without_jax():
    code = "import sys, chainrule.runtime; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def _packages():
    import pkgutil

    names = ["chainrule"]
    for module in pkgutil.walk_packages(chainrule.__path__, "chainrule."):
        parts = module.name.split(".")
        if module.ispkg and not any(part.startswith("_") for part in parts):
            names.append(module.name)
    return names


@pytest.mark.parametrize("package", _packages())
def test_package_exports_what_it_says(package):
    if package in ("chainrule.casadi", "chainrule.mcp", "chainrule.openmdao", "chainrule.torch"):
        pytest.importorskip(package.removeprefix("chainrule."))
    module = importlib.import_module(package)
    assert module.__doc__, f"{package} has no docstring"
    missing = [name for name in getattr(module, "__all__", []) if not hasattr(module, name)]
    assert missing == []

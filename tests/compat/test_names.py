"""Every public name of the real packages is here, or on the list of those that are left out on purpose."""

import importlib
import pkgutil
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = {
    "tesseract_core": DOCS / "migrate-tesseract.md",
    "tesseract_jax": DOCS / "migrate-tesseract.md",
    "graphax": DOCS / "migrate-graphax.md",
    "pcx": DOCS / "migrate-pcx.md",
}

# What an ancestor's own parts tell each other; its documentation names none of it.
INTERNAL = {
    "tesseract_core.runtime": {
        "app_cli", "app_http", "array_encoding", "cli", "core", "cuda", "device_transport", "logs",
        "meta", "mpa", "profiler", "schema_generation", "serve",
    },
    "tesseract_core.runtime.experimental": {
        "binref_passthrough", "finite_differences", "gradient_endpoint_derivation", "lazy_sequence",
        "mpa", "paths", "tesseract_reference", "vjp_cache",
    },
    "tesseract_core": {"sdk"},
    "tesseract_jax": {"batching", "primitive", "sow", "tesseract_compat", "tree_util"},
}  # fmt: skip

ABSENT = {
    "tesseract_core.runtime.file_interactions": {
        "SUPPORTED_FORMATS", "available_compressions", "available_formats",
        "available_gpu_transports", "expand_glob", "get_filesize", "is_absolute_path", "is_url",
        "join_paths", "output_to_bytes", "parent_path", "read_from_path", "write_to_path",
    },
    "tesseract_core.runtime.jax_recipes": {"as_jax_array", "as_jax_arrays"},
    "tesseract_core.runtime.schema_types": {"ArrayAnnotationType", "safe_issubclass"},
    "tesseract_core.runtime.testing.finite_differences": {
        "check_endpoint_gradients", "expand_path_pattern", "get_differentiable_paths",
    },
    "tesseract_core.runtime.testing.regression": {
        "DICT_INDEX_SENTINEL", "ROWFORMAT", "RegressionTestResult",
    },
    "tesseract_core.runtime.tree_transforms": {"DICT_KEY_SPECIALS"},
}  # fmt: skip


def public_names(module):
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
    }


def public_modules(name):
    """The module and the modules below it, but for private and internal ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip(name)
    yield name, module
    for child in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not child.name.startswith("_") and child.name not in INTERNAL.get(name, ()):
            yield from public_modules(f"{name}.{child.name}")


@pytest.mark.interop
@pytest.mark.parametrize("package", ["tesseract_core", "tesseract_jax", "pcx"])
def test_every_public_name_is_here_or_listed_as_absent(package):
    missing = {}
    for name, module in public_modules(package):
        ours = importlib.import_module(f"chainrule.compat.{name}")
        names = {each for each in public_names(module) if not hasattr(ours, each)}
        if names:
            missing[name] = names
    listed = {name: names for name, names in ABSENT.items() if name.startswith(package)}
    assert missing == listed


def listed_names(page):
    """The words in the first column of the page's tables."""
    rows = re.findall(r"^\| (.+?) \|", page.read_text(), re.MULTILINE)
    return set(
        re.findall(r"\w+", " ".join(code for row in rows for code in re.findall("`(.+?)`", row)))
    )


@pytest.mark.interop
@pytest.mark.parametrize("package", ["tesseract_core", "tesseract_jax", "pcx"])
def test_every_name_has_a_row(package):
    absent = {name for names in ABSENT.values() for name in names}
    modules = {
        child.name for child in pkgutil.iter_modules(importlib.import_module(package).__path__)
    }
    known = listed_names(PAGES[package]) | absent | modules | {"__version__"}
    for name, module in public_modules(package):
        assert public_names(module) - known - {"finite_differences", "regression"} == set(), name


def test_every_name_of_graphax_has_a_row():
    from chainrule.compat import graphax

    names = {*graphax.__all__, *graphax.examples.__all__, *graphax.core.__all__}
    names |= {child.name for child in pkgutil.iter_modules(graphax.examples.__path__)}
    assert names <= listed_names(PAGES["graphax"])


def test_every_constructor_and_method_has_a_row():
    from chainrule.compat.tesseract_core import Tesseract

    names = {name for name in vars(Tesseract) if not name.startswith("_")}
    # What is natively there: the handle itself, what programs in this process look for, derived endpoints.
    own = {"call", "component", "derived_endpoints", "derives", "local", "with_derived_endpoints"}
    assert names - listed_names(PAGES["tesseract_core"]) == own


def test_the_page_says_what_is_absent():
    text = PAGES["tesseract_core"].read_text()
    for name in (*ABSENT, *(n for names in ABSENT.values() for n in names)):
        assert f"`{name.removeprefix('tesseract_core.')}`" in text, name


@pytest.mark.interop
def test_the_page_says_what_becomes_of_every_variable():
    pytest.importorskip("tesseract_core")
    from tesseract_core.runtime.config import RuntimeConfig as Theirs
    from tesseract_core.sdk.config import RuntimeConfig as OfTheHost

    from chainrule.compat.tesseract_core.runtime.config import RuntimeConfig

    assert list(RuntimeConfig.model_fields) == list(Theirs.model_fields)
    text = PAGES["tesseract_core"].read_text()
    for name in OfTheHost.model_fields:
        assert f"`TESSERACT_{name.upper()}`" in text

"""Settings every test shares: CPU only, reproducible hypothesis runs, nothing sent anywhere."""

import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest
from hypothesis import HealthCheck, settings

# The machine is shared and noisy: no deadline, and the same examples on every run.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _single_precision():
    """A component that is loaded in this process may switch to double precision for good."""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", False)


@pytest.fixture(scope="module", autouse=True)
def _clean_jax_for_the_next_module():
    """Single precision, and no compiled programs: those of the whole run would take 6 GB in each process."""
    yield
    _single_precision()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Modules are imported when they are collected, and make arrays then."""
    report = yield
    _single_precision()
    return report


def pytest_collection_modifyitems(items):
    """Files with slow tests first: short ones fill up the end, when a worker has nothing left to take."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def fmus(tmp_path_factory):
    """A function that builds an FMU from C, once, or a variant of one under another name."""
    pytest.importorskip("fmpy")
    if shutil.which("gcc") is None:
        pytest.skip("FMUs are built with gcc, which is not here")
    from examples.fmu import build

    folder, made = tmp_path_factory.mktemp("fmus"), {}

    def get(name, target=None, *, replace=None):
        target = target or name
        if target not in made:
            own = Path(__file__).parent / "runtime" / "fmi"
            sources = own if (own / f"{name}.c").exists() else build.HERE
            made[target] = build.build_fmu(
                name, folder, sources=sources, target=target, replace=replace
            )
        return made[target]

    return get

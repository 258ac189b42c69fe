"""Programs written for the ancestors run unchanged on our packages and on the real ones: equal results."""

import runpy
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

from chainrule.compat import Installation

pytestmark = pytest.mark.interop

PROGRAMS = Path(__file__).parent / "programs"


@contextmanager
def hidden(*names):
    """Take modules out of `sys.modules` for a while, as in a process that has not imported them."""
    found = {
        name: sys.modules[name] for name in list(sys.modules) if name.partition(".")[0] in names
    }
    for name in found:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(found)


def run_here(program, names, folder):
    with hidden(*names):
        installation = Installation(names)
        try:
            return runpy.run_path(str(PROGRAMS / program))["main"](folder)
        finally:
            installation.remove()


def run_there(program, names, folder):
    for name in names:
        pytest.importorskip(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runpy.run_path(str(PROGRAMS / program))["main"](folder)


def assert_equal(here, there, where=""):
    if isinstance(there, dict):
        assert set(here) == set(there), where
        for key in there:
            assert_equal(here[key], there[key], f"{where}.{key}")
    elif isinstance(there, list | tuple):
        assert len(here) == len(there), where
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            assert_equal(one, other, f"{where}[{number}]")
    elif hasattr(there, "dtype"):
        assert (here.shape, here.dtype) == (there.shape, there.dtype), where
        np.testing.assert_allclose(here, there, rtol=2e-5, atol=1e-6, err_msg=where)
    else:
        assert here == there, where


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("use_tesseract_core.py", ("tesseract_core",)),
        ("use_tesseract_jax.py", ("tesseract_core", "tesseract_jax")),
        ("use_pcx.py", ("pcx",)),
        ("use_pcx_scan.py", ("pcx",)),
    ],
)
def test_program(program, names, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    with jax.enable_x64("jax" in program):
        here = run_here(program, names, tmp_path / "here")
        there = run_there(program, names, tmp_path / "there")
    assert_equal(here, there)

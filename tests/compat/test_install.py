"""`install`: explicit, reversible, and as if the packages were there."""

import importlib
import pickle
import runpy
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from chainrule import compat
from chainrule.runtime import Array


@contextmanager
def installed(*names):
    """The names, as in a process where the real packages are absent."""
    kept = {n: sys.modules.pop(n) for n in list(sys.modules) if n.partition(".")[0] in names}
    installation = compat.Installation(names)
    try:
        yield installation
    finally:
        installation.remove()
        sys.modules.update(kept)


def test_install_and_remove():
    assert "graphax" not in sys.modules
    with compat.install("graphax") as installed:
        import graphax
        import graphax.examples

        assert installed.names == ("graphax",)
        assert graphax.examples is compat.graphax.examples
        assert graphax is compat.graphax
    assert "graphax" not in sys.modules
    assert graphax.__name__ == graphax.__spec__.name == "chainrule.compat.graphax"
    assert graphax.examples.__spec__.name == "chainrule.compat.graphax.examples"
    with pytest.raises(ImportError):
        importlib.import_module("graphax")
    installed.remove()


def test_install_leaves_real_packages_alone():
    pytest.importorskip("tesseract_core")
    with compat.install("tesseract_core") as installed:
        assert installed.names == ()
    with pytest.raises(ValueError, match="no package for 'numpy'"):
        compat.install("numpy")


def test_installed_submodules_in_every_spelling():
    with installed("tesseract_core"):
        space = {}
        exec(
            "import tesseract_core.runtime.testing.finite_differences\n"
            "from tesseract_core.runtime import experimental, Array\n"
            "from tesseract_core.runtime.tree_transforms import *\n"
            "from tesseract_core.runtime.experimental import SKIP_REQUIRED_FILE_CHECK, require_file\n",
            space,
        )
        assert space["Array"] is Array
        assert space["get_at_path"]({"a": [1]}, "a.[0]") == 1
        assert space["SKIP_REQUIRED_FILE_CHECK"] is False


def test_an_installation_inside_another_changes_nothing():
    with compat.install("graphax") as outer:
        with compat.install("graphax") as inner:
            assert inner.names == ()
        import graphax

        assert graphax is compat.graphax
        assert outer.names == ("graphax",)
    assert "graphax" not in sys.modules
    outer.remove()


def test_everything_is_installed_by_default_where_it_is_absent():
    with compat.install() as installation:
        assert "graphax" in installation.names
        assert set(installation.names) <= {"graphax", "pcx", "tesseract_core", "tesseract_jax"}


def test_nothing_is_installed_by_importing():
    code = (
        "import sys, chainrule.compat as c, chainrule.compat.graphax; import importlib.util as u; "
    )
    code += "sys.exit(u.find_spec('graphax') is not None or 'graphax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_modules_that_are_not_there_are_missing_as_usual():
    with installed("pcx"):
        with pytest.raises(ModuleNotFoundError, match=r"pcx\.nothing"):
            importlib.import_module("pcx.nothing")
        assert importlib.util.find_spec("pcx.nothing") is None
        assert importlib.util.find_spec("pcx.utils") is not None


def test_what_was_pickled_can_be_read_without_an_installation():
    with installed("pcx"):
        space = {}
        exec("import pcx as px, pcx.nn as pxnn\nlayer = pxnn.Linear(2, 3)", space)
        text = pickle.dumps(space["layer"])
    read = pickle.loads(text)
    assert type(read) is compat.pcx.nn.Linear
    np.testing.assert_array_equal(read.nn.weight.get(), space["layer"].nn.weight.get())


def test_a_program_is_run_with_the_names(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "sibling.py").write_text("")
    program = tmp_path / "folder" / "program.py"
    program.write_text(
        "import sys, graphax, sibling\n"
        "if __name__ == '__main__':\n"
        "    print(graphax.__name__, *sys.argv[1:])\n"
    )
    for folder, arguments in ((tmp_path, [str(program)]), (tmp_path / "folder", ["-m", "program"])):
        done = subprocess.run(
            [sys.executable, "-m", "chainrule.compat", *arguments, "--flag", "1"],
            capture_output=True, text=True, timeout=60, check=True, cwd=folder,
        )  # fmt: skip
        assert done.stdout == "chainrule.compat.graphax --flag 1\n"


def test_a_module_of_an_ancestor_is_run(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["tesseract-runtime", "--help"])
    with installed("tesseract_core"), pytest.raises(SystemExit) as leaving:
        runpy.run_module("tesseract_core.runtime", run_name="__main__")
    assert not leaving.value.code
    assert "TESSERACT_API_PATH" in capfd.readouterr().err


def test_usage():
    from chainrule.compat.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main([])
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])

"""Loading a component file changes nothing for other modules."""

import importlib
import os
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chainrule.client import Component
from chainrule.errors import DefinitionError
from chainrule.runtime import load_component

FILE = """
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]

def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y={factor} * inputs.x)
"""


def write(folder, text, name="tesseract_api.py"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))
    return folder / name


def test_a_peer_file_runs_unchanged(tmp_path):
    component = load_component(write(tmp_path / "double", FILE.format(factor=2)))
    assert component.name == "double"
    np.testing.assert_array_equal(component.apply({"x": [1.0, 2.0]})["y"], [2.0, 4.0])


def test_peer_types_are_ours_although_the_peer_is_installed(tmp_path):
    import chainrule.runtime

    file = write(
        tmp_path,
        FILE.format(factor=1)
        + """
import tesseract_core.runtime
import tesseract_core.runtime.experimental as experimental
from tesseract_core import runtime
from tesseract_core.runtime import experimental as again
from tesseract_core.runtime.tree_transforms import get_at_path
from tesseract_core.runtime.config import get_config
seen = [tesseract_core.runtime.Array, runtime.Array, experimental.require_file, again.require_file]
""",
    )
    component = load_component(file)
    seen = component._definition.function.__globals__["seen"]
    assert seen[0] is seen[1] is chainrule.runtime.Array
    assert seen[2] is seen[3] is chainrule.runtime.experimental.require_file


def test_imports_inside_functions_are_redirected_too(tmp_path):
    file = write(
        tmp_path,
        FILE.format(factor=1).replace(
            "    return",
            "    from tesseract_core.runtime.experimental import log_metric\n"
            "    assert log_metric.__module__.startswith('chainrule'), log_metric.__module__\n"
            "    return",
        ),
    )
    load_component(file).apply({"x": [1.0]})


def test_peer_imports_can_be_left_alone(tmp_path):
    peer = pytest.importorskip("tesseract_core.runtime")
    file = write(tmp_path, FILE.format(factor=2) + "seen = Array\n")
    component = load_component(file, redirect_peer=False)
    assert component._definition.function.__globals__["seen"] is peer.Array
    np.testing.assert_array_equal(component.apply({"x": [1.0]})["y"], [2.0])


def test_unknown_peer_modules_say_what_there_is(tmp_path):
    with pytest.raises(DefinitionError, match=r"tesseract_core\.runtime\.nowhere"):
        load_component(write(tmp_path, "import tesseract_core.runtime.nowhere"))


def test_two_files_of_one_name_with_neighbours_of_one_name(tmp_path):
    components = []
    for factor in (2, 3):
        folder = tmp_path / str(factor)
        write(folder, f"FACTOR = {factor}", "helpers.py")
        write(folder / "inner", "from ..helpers import FACTOR\nfrom . import deep", "__init__.py")
        write(folder / "inner", "VALUE = 'deep'", "deep.py")
        text = (
            FILE.format(factor="helpers.FACTOR")
            + "import helpers, inner.deep\nfrom inner import FACTOR\n"
        )
        components.append(load_component(write(folder, text)))
    results = [component.apply({"x": [1.0]})["y"][0] for component in components]
    assert results == [2.0, 3.0]
    assert components[0].content_hash != components[1].content_hash


def test_folders_beside_the_file_do_not_hide_installed_packages(tmp_path):
    write(tmp_path / "yaml", "raise RuntimeError('a clone, not the package')", "setup.py")
    write(tmp_path / "plain", "VALUE = 5.0", "part.py")
    text = (
        FILE.format(factor="plain.part.VALUE") + "import yaml\nyaml.safe_load\nimport plain.part\n"
    )
    assert load_component(write(tmp_path, text)).apply({"x": [1.0]})["y"] == [5.0]


def test_neighbours_count_for_the_content_hash(tmp_path):
    text = FILE.format(factor="FACTOR") + "from helpers import FACTOR\n"
    hashes = []
    for value in (1, 2, 1):
        write(tmp_path, f"FACTOR = {value}", "helpers.py")
        hashes.append(load_component(write(tmp_path, text)).content_hash)
    assert hashes[0] == hashes[2] != hashes[1]


def test_nothing_public_changes(tmp_path):
    file = write(tmp_path, FILE.format(factor=1) + "import helpers\n")
    write(tmp_path, "", "helpers.py")
    load_component(file)  # the imports of Chainrule itself are done now
    path, environment, modules = list(sys.path), dict(os.environ), set(sys.modules)
    load_component(file)
    assert sys.path == path
    assert dict(os.environ) == environment
    new = {
        name
        for name in set(sys.modules) - modules
        if not name.startswith("chainrule.runtime._loaded")
    }
    assert new == set()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["helpers.py", "tesseract_api.py"]


def test_a_failed_load_leaves_nothing(tmp_path):
    before = set(sys.modules)
    with pytest.raises(DefinitionError) as caught:
        load_component(write(tmp_path, "import json\nraise ValueError('no licence')"))
    assert caught.value.code == "module_failed"
    assert "no licence at " in str(caught.value)
    assert ".py:2 (<module>)" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert not [n for n in set(sys.modules) - before if n.startswith("chainrule.runtime._loaded.")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise SystemExit(3)", "module_failed"),
        ("def broken(:", "module_failed"),
        ("x = 1", "module_incomplete"),
        (FILE.format(factor=1) + "del OutputSchema", "module_incomplete"),
        (FILE.format(factor=1) + "InputSchema = 3", "bad_schema"),
        (FILE.format(factor=1) + "InputSchema = dict", "bad_schema"),
        (FILE.format(factor=1) + "async def apply(inputs): ...", "bad_endpoint"),
        (FILE.format(factor=1) + "def apply(): ...", "bad_endpoint"),
        (FILE.format(factor=1) + "apply = 3", "bad_endpoint"),
        (FILE.format(factor=1) + "def jacobian(inputs, a, b): ...", "bad_endpoint"),
    ],
)
def test_bad_modules_say_so(tmp_path, text, code):
    with pytest.raises(DefinitionError) as caught:
        load_component(write(tmp_path, text))
    assert caught.value.code == code


def test_missing_files_and_folders(tmp_path):
    for source in (tmp_path / "none.py", tmp_path):
        with pytest.raises(DefinitionError) as caught:
            load_component(source)
        assert caught.value.code == "module_missing"
    with pytest.raises(DefinitionError, match="Cannot make a component from int"):
        load_component(3)


def test_recursive_schemas_are_refused(tmp_path):
    text = """
from __future__ import annotations
from pydantic import BaseModel
class Tree(BaseModel):
    children: list[Tree]
class InputSchema(BaseModel):
    tree: Tree
class OutputSchema(BaseModel):
    n: int
def apply(inputs): ...
"""
    with pytest.raises(DefinitionError, match="Tree → Tree") as caught:
        load_component(write(tmp_path, text))
    assert caught.value.code == "recursive_schema"


def test_fields_that_cannot_be_described(tmp_path):
    text = """
from pydantic import BaseModel, ConfigDict
class Thing: ...
class InputSchema(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: Thing
class OutputSchema(BaseModel):
    n: int
def apply(inputs): ...
"""
    component = load_component(write(tmp_path, text))
    with pytest.raises(DefinitionError) as caught:
        component.openapi_schema
    assert caught.value.code == "bad_schema"


def test_project_file_gives_name_and_version(tmp_path):
    file = write(tmp_path, FILE.format(factor=1))
    write(tmp_path, "name: heat\nversion: 1.2.3\ndescription: warm", "tesseract_config.yaml")
    component = load_component(file)
    assert (component.name, component.version, component.description) == ("heat", "1.2.3", "warm")
    renamed = load_component(file, config={"name": "cold"})
    assert (renamed.name, renamed.version) == ("cold", "1.2.3")
    write(tmp_path, "name: heat\nversion: 1.5", "tesseract_config.yaml")  # YAML reads a number
    assert load_component(file).openapi_schema["info"]["version"] == "1.5"
    write(tmp_path, "- just\n- a list", "tesseract_config.yaml")
    with pytest.raises(DefinitionError) as caught:
        load_component(file)
    assert caught.value.code == "bad_project_file"


def test_decorated_functions_in_files(tmp_path):
    text = """
import chainrule

@chainrule.component
def double(x: float) -> float:
    return 2 * x
"""
    file = write(tmp_path, text, "component.py")
    assert load_component(tmp_path).apply({"x": 2.0}) == {"result": 4.0}
    assert load_component(f"{file}:double").name == "double"
    write(
        tmp_path,
        text + "\ndef plain(x: int) -> int:\n    return -x\nother = double",
        "component.py",
    )
    assert load_component(f"{file}:plain").apply({"x": 1}) == {"result": -1}
    with pytest.raises(DefinitionError, match=r"component\.py:other") as caught:
        load_component(file)
    assert caught.value.code == "component_ambiguous"
    with pytest.raises(DefinitionError, match="nothing"):
        load_component(f"{file}:nothing")


def test_concurrent_loads_and_calls(tmp_path):
    files = [write(tmp_path / str(k), FILE.format(factor=k)) for k in range(4)]
    with ThreadPoolExecutor(8) as pool:
        components = list(pool.map(load_component, files * 2))
        x = np.arange(3.0)
        jobs = [(k % 4, pool.submit(components[k % 8].apply, {"x": x + k})) for k in range(64)]
        for k, (factor, job) in enumerate(jobs):
            np.testing.assert_array_equal(job.result()["y"], factor * (x + k))


def test_no_lock_is_held_while_author_code_runs(tmp_path):
    text = (
        FILE.format(factor=1)
        + """
import threading
barrier = threading.Barrier(2, timeout=300)

def apply(inputs):
    barrier.wait()  # passes only when two calls are inside at the same time
    return {"y": inputs.x}
"""
    )
    component = load_component(write(tmp_path, text))
    threads = [threading.Thread(target=component.apply, args=({"x": [1.0]},)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not component._definition.function.__globals__["barrier"].broken


def test_an_imported_module_is_a_component():
    import types

    from pydantic import BaseModel

    class Number(BaseModel):
        n: int

    module = types.ModuleType("numbers_module", "Adds one.")
    module.InputSchema = module.OutputSchema = Number
    module.apply = lambda inputs: {"n": inputs.n + 1}
    component = load_component(module)
    assert component.name == "numbers_module"
    assert component.description == "Adds one."
    assert component.apply({"n": 1}) == {"n": 2}


POOLED = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from chainrule.runtime import component
from helpers import FACTOR

class Scaled:
    def __init__(self, value):
        self.value = value * FACTOR

def scale(value):
    return Scaled(value)

@component
def total(method: str) -> float:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        return sum(scaled.value for scaled in pool.map(scale, [1.0, 2.0]))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("start", [Component.from_api, Component.from_source])
def test_functions_and_classes_of_a_component_reach_process_pools(tmp_path, start, method):
    file = write(tmp_path, POOLED, "pooled.py")
    write(tmp_path, "FACTOR = 10.0", "helpers.py")
    with start(f"{file}:total") as component:
        assert component.apply({"method": method})["result"] == 30.0


def test_names_of_no_loaded_component_cannot_be_imported():
    for name in ("nothing", "peer_0_zz", "peer_0_2f_2f"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"chainrule.runtime._loaded.{name}")


def test_a_missing_package_is_told_with_two_ways_to_get_it(tmp_path):
    file = write(tmp_path, "import no_such_package_here.part")
    with pytest.raises(DefinitionError, match="environment=True") as caught:
        load_component(file)
    assert "Install no_such_package_here into" in str(caught.value)


def test_the_repr_has_a_version_only_where_there_is_one(tmp_path):
    component = load_component(write(tmp_path, FILE.format(factor=1)))
    assert "unknown" not in repr(component)

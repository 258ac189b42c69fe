"""`from_source` where `tesseract_config.yaml` says what is needed; conda is a stand-in."""

import sys

import pytest

from chainrule.client._environment import USUAL_REQUIREMENTS, _declared
from chainrule.compat.tesseract_core import Tesseract
from chainrule.errors import DefinitionError

API = """
import greeting
from pydantic import BaseModel

class InputSchema(BaseModel):
    name: str

class OutputSchema(BaseModel):
    text: str

def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(text=greeting.greet(inputs.name))
"""
# Notes how it was called, and makes an environment with one package in it.
CONDA = f"""#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
for prefix; do :; done
{sys.executable} -m venv --without-pip "$prefix"
mkdir "$prefix/conda-meta"
echo 'greet = "Hello, {{}}".format' >"$(echo "$prefix"/lib/python*/site-packages)/greeting.py"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "greeter"
    folder.mkdir()
    (folder / "tesseract_api.py").write_text(API)
    (folder / "tesseract_config.yaml").write_text(
        "name: greeter\nbuild_config:\n  requirements: {provider: conda}\n"
    )
    (folder / "tesseract_environment.yaml").write_text("dependencies: [python, greeting]\n")
    (tmp_path / "conda").write_text(CONDA)
    (tmp_path / "conda").chmod(0o755)
    monkeypatch.setenv("TESSERACT_CONDA_EXECUTABLE", str(tmp_path / "conda"))
    return folder


def test_a_component_runs_in_an_environment_of_conda(folder, tmp_path):
    for _ in range(2):  # the second time the environment is there
        with Tesseract.from_source(folder) as greeter:
            assert greeter.apply({"name": "you"}) == {"text": "Hello, you"}
    prefix = folder / ".chainrule-venv"
    expected = f"env create --quiet --file tesseract_environment.yaml --prefix {prefix}\n"
    assert (tmp_path / "calls").read_text() == expected


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho no such channel >&2\nexit 1\n", "no such channel"),
        ('#!/bin/sh\nfor p; do :; done\nmkdir -p "$p/bin" "$p/lib/python3.1"\n', "does not have"),
        (None, "there is no"),
    ],
)
def test_why_there_is_no_environment(folder, tmp_path, script, reason):
    conda = tmp_path / "conda"
    conda.unlink() if script is None else conda.write_text(script)
    with pytest.raises(RuntimeError, match=reason) as caught:
        Tesseract.from_source(folder).serve()
    assert caught.value.__cause__.code == "environment_failed"
    assert not (folder / ".chainrule-venv").exists()


def test_the_environment_file_has_to_be_there(folder):
    (folder / "tesseract_environment.yaml").unlink()
    with pytest.raises(RuntimeError, match=r"tesseract_environment\.yaml does not exist"):
        Tesseract.from_source(folder).serve()


def test_another_file_of_requirements_can_be_named(tmp_path):
    (tmp_path / "tesseract_config.yaml").write_text(
        "build_config:\n  requirements: {provider: uv-pip, requirements_file: other.txt}\n"
    )
    (tmp_path / "tesseract_requirements.txt").write_text("numpy\n")
    with pytest.raises(DefinitionError, match=r"other\.txt does not exist") as caught:
        _declared(tmp_path)
    assert caught.value.code == "bad_requirements"
    (tmp_path / "other.txt").write_text("scipy\n")
    assert _declared(tmp_path).name == "other.txt"
    (tmp_path / "component.yaml").write_text("build: {requirements: own.txt}\n")
    (tmp_path / "own.txt").write_text("scipy\n")
    assert _declared(tmp_path).name == "own.txt"


def test_the_first_of_the_usual_files_is_read(tmp_path):
    assert _declared(tmp_path) is None
    for name in reversed(USUAL_REQUIREMENTS):
        (tmp_path / name).write_text("")
        assert _declared(tmp_path).name == name

"""Environments of conda in images: what is written for the build, and the script that makes them.

The script runs against a stand-in for conda that notes how it was called; no channel is needed.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from chainrule.cli import main
from chainrule.deploy import images
from chainrule.errors import DefinitionError

SCRIPTS = Path(images.__file__).parent / "_scripts"
ENVIRONMENT = """
name: heat
channels: [conda-forge]
dependencies:
  - python=3.12
  - petsc4py>=3.20
  - jax
  - pip:
    - ./own[fast]
    - rich
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "heat"
    (folder / "own").mkdir(parents=True)
    (folder / "own" / "setup.py").write_text("")
    (folder / "tesseract_api.py").write_text("def apply(inputs): ...\n")
    (folder / "tesseract_environment.yaml").write_text(ENVIRONMENT)
    config = "name: heat\nbuild_config: {requirements: {provider: conda}}\n"
    (folder / "tesseract_config.yaml").write_text(config)
    return folder


def test_the_peers_folder_is_built_with_conda(folder, tmp_path):
    arguments = ["build", str(folder), "--generate-only", "--build-dir", str(tmp_path / "context")]
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    context = tmp_path / "context"
    recipe = (context / "Containerfile").read_text()
    stage = recipe[recipe.index("AS packages") : recipe.rindex("FROM")]
    assert "RUN --mount=type=cache,target=/build-cache sh /build/conda_tools.sh" in stage
    assert "COPY environment.yaml chainrule-" in stage
    assert "sh /build/conda_install.sh 'chainrule[serve,jax] @ file:///build/" in stage
    assert "uv" not in stage
    assert "COPY --from=packages /opt/venv /opt/venv" in recipe
    written = yaml.safe_load((context / "environment.yaml").read_text())
    assert written["channels"] == ["conda-forge"]
    assert written["dependencies"][:3] == ["python=3.12", "petsc4py>=3.20", "jax"]
    assert written["dependencies"][3] == {"pip": ["./local_requirements/own[fast]", "rich"]}
    assert (context / "local_requirements" / "own" / "setup.py").exists()
    definition = (context / "component.def").read_text()
    assert "sh /build/scripts/conda_tools.sh" in definition
    assert "sh /build/conda_install.sh" in definition
    copied = recipe[recipe.index("COPY scripts/login.sh") :].splitlines()[0].split()[1:-1]
    assert all((context / name).exists() for name in copied)


def test_a_folder_of_our_own_names_the_file(folder):
    (folder / "component.yaml").write_text("build: {requirements: tesseract_environment.yaml}\n")
    plan = images.plan_build(folder, gpu=True)
    assert plan.requirements.is_conda
    assert "cuda12" not in plan.requirements.text


@pytest.mark.parametrize(
    ("text", "found"),
    [("[1", "is not YAML"), ("a: 1", "no list of dependencies"), (None, "does not exist")],
)
def test_environment_files_that_are_none(folder, text, found):
    file = folder / "tesseract_environment.yaml"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(DefinitionError, match=found) as caught:
        images.plan_build(folder)
    assert caught.value.code == "bad_requirements"


def test_conda_says_which_python(folder):
    settings = "{provider: conda, python_version: '3.12'}"
    (folder / "tesseract_config.yaml").write_text(
        f"name: heat\nbuild_config: {{requirements: {settings}}}\n"
    )
    with pytest.raises(DefinitionError) as caught:
        images.plan_build(folder)
    assert caught.value.code == "bad_project_file"


PYTHON = """#!/bin/sh
echo "python $*" >>"$LOG"
"""
TOOL = """#!/bin/sh
echo "{name} $*" >>"$LOG"
[ -z "${{FAILS:-}}" ] || exit 1
for prefix; do :; done
mkdir -p "$prefix/bin"
[ -n "${{EMPTY:-}}" ] || {{ cp "$PYTHON" "$prefix/bin/python"; chmod +x "$prefix/bin/python"; }}
"""


@pytest.fixture
def install(tmp_path):
    """Run the script with a stand-in for one of conda's tools."""
    build = tmp_path / "build"
    build.mkdir()
    for name in ("login.sh", "conda_install.sh"):
        shutil.copy(SCRIPTS / name, build)
    (build / "credentials").write_text("")
    (tmp_path / "python").write_text(PYTHON)

    def run(tool="conda", **variables):
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / tool).write_text(TOOL.format(name=tool))
        (programs / tool).chmod(0o755)
        done = subprocess.run(
            ["sh", str(build / "conda_install.sh"), "chainrule", "e.yaml", str(tmp_path / "env")],
            capture_output=True,
            text=True,
            env={
                "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
                "LOG": str(tmp_path / "log"),
                "PYTHON": str(tmp_path / "python"),
                **variables,
            },
        )
        return done, (tmp_path / "log").read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("conda", "env create --quiet"),
        ("mamba", "env create --quiet"),
        ("micromamba", "create --yes --quiet"),
    ],
)
def test_an_environment_is_made_and_chainrule_is_put_into_it(install, tmp_path, tool, words):
    done, calls = install(tool)
    assert done.returncode == 0, done.stdout
    assert calls[0] == f"{tool} {words} --file e.yaml --prefix {tmp_path / 'env'}"
    assert calls[1:3] == ["python -m pip --version", "python -m pip install chainrule"]


@pytest.mark.parametrize(
    ("variable", "message"),
    [("FAILS", "a channel cannot be reached"), ("EMPTY", "has no Python")],
)
def test_what_failed_is_said(install, variable, message):
    done, _ = install(**{variable: "1"})
    assert done.returncode == 1
    assert message in done.stdout
    assert "chainrule-build-failed: conda environment" in done.stdout


def test_an_installer_that_cannot_be_fetched_is_named(tmp_path):
    done = subprocess.run(
        ["sh", str(SCRIPTS / "conda_tools.sh")],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "CONDA_INSTALLER_URL": f"file://{tmp_path}/nothing.sh"},
    )
    assert done.returncode == 1
    assert "nothing.sh. Name a base image that has it" in done.stdout
    assert "chainrule-build-failed: conda" in done.stdout

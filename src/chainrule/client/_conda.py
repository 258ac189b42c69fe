"""An environment of conda for a component that asks for one in `tesseract_config.yaml`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from chainrule._errors import DefinitionError

_TOOLS = ("conda", "mamba", "micromamba")


def create_with_conda(folder: Path, environment: Path) -> None:
    """Make an environment.

    Args:
        folder: where.
        environment: conda's file; it has to ask for the Python of this process, whose packages are added.

    Raises:
        DefinitionError: there is no conda, it fails, or the environment has another Python
            (`environment_failed`).
    """
    tool = _tool(environment)
    is_micro = Path(tool[0]).name == "micromamba"
    command = [*tool, *(["create", "--yes"] if is_micro else ["env", "create"]), "--quiet"]
    done = subprocess.run(
        [*command, "--file", environment.name, "--prefix", str(folder.resolve())],
        capture_output=True,
        text=True,
        cwd=environment.parent,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise _failed(
            f"{tool[0]} cannot make the environment of {environment}. Are its channels reached from "
            f"here? {(done.stderr or done.stdout).strip()[-500:]}"
        )
    _check_python(folder, environment)


def _tool(environment: Path) -> list[str]:
    named = os.environ.get("TESSERACT_CONDA_EXECUTABLE") or os.environ.get("CONDA_EXE")
    tool = shlex.split(named) if named else [next(filter(shutil.which, _TOOLS), "conda")]
    if shutil.which(tool[0]) is None:
        raise _failed(
            f"{environment} needs conda, and there is no {tool[0]!r} here. Install it, set "
            "TESSERACT_CONDA_EXECUTABLE to it or to mamba or micromamba, or pass the interpreter of an "
            "environment that exists."
        )
    return tool


def _check_python(folder: Path, environment: Path) -> None:
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / "bin" / "python").exists() or not (folder / "lib" / f"python{ours}").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        raise _failed(
            f"The environment of {environment} does not have Python {ours}, which runs here and whose "
            f"packages it is to share. Ask for python={ours} in it, or build an image."
        )


def _failed(message: str) -> DefinitionError:
    return DefinitionError(message, code="environment_failed")

"""A virtual environment for one component: its own requirements first, then the packages of this interpreter.

The environment falls back to the packages of this interpreter, so Chainrule and NumPy are there without being
installed again, and what the component asks for wins over what is found here. It is made once and made again
when the requirements or the interpreter change.

Which file says what a component needs is the same for an environment here and for an image: the one that
`component.yaml` or `tesseract_config.yaml` names, else the first of `USUAL_REQUIREMENTS` that is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.runtime.internal import read_mapping

_FOLDER = ".chainrule-venv"
_STAMP = "chainrule-stamp"
_LAST = "CHAINRULE_PATH_LAST"
_CONDA = (".yaml", ".yml")
# The first that reads lock files (PEP 751).
_PIP_WITH_LOCKS = 26

USUAL_REQUIREMENTS = (
    "pylock.toml",
    "requirements.txt",
    "tesseract_requirements.txt",
    "pyproject.toml",
)
"""Names of files of requirements, the one that is taken first."""


def ensure_environment(source: Path, folder: Path | None = None) -> Path:
    """The interpreter of a component's environment, which is made if it is not there.

    Args:
        source: the component's file or folder; requirements are read from a file there.
        folder: where the environment is; `.chainrule-venv` beside the component when not given.

    Raises:
        DefinitionError: there is no such folder (`module_missing`), the file of requirements is missing or is
            not what its name says (`bad_requirements`), or they cannot be installed (`environment_failed`).
    """
    home = source if source.is_dir() else source.parent
    if not home.is_dir():
        raise DefinitionError(f"There is no folder {home}.", code="module_missing")
    folder = folder or home / _FOLDER
    python = folder / "bin" / "python"
    requirements = _declared(home)
    wanted = _stamp(requirements)
    stamp = folder / _STAMP
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    if folder.exists():
        _check_ours(folder)
        shutil.rmtree(folder)
    _create(folder, python, requirements)
    stamp.write_text(wanted)
    return python


def _declared(home: Path) -> Path | None:
    """The file that says what a component needs."""
    own, peer = home / "component.yaml", home / "tesseract_config.yaml"
    if own.is_file():
        return requirements_file(home, _nested(read_mapping(own), "build", "requirements"))
    wishes = _nested(read_mapping(peer), "build_config", "requirements") if peer.is_file() else None
    wishes = wishes if isinstance(wishes, dict) else {}
    is_conda = wishes.get("provider") == "conda"
    named = "tesseract_environment.yaml" if is_conda else wishes.get("requirements_file")
    return requirements_file(home, named)


def _nested(node: Any, *keys: str) -> Any:
    """What mappings in one another hold under some keys; `None` where one of them is missing."""
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def requirements_file(folder: Path, name: str | None) -> Path | None:
    """The file in a component's folder that says what it needs.

    Args:
        folder: of the component.
        name: of the file; the first of the usual names when not given. The peer's default file may be
            absent.

    Raises:
        DefinitionError: there is no file of this name (`bad_requirements`).
    """
    wanted = USUAL_REQUIREMENTS if name is None else (name,)
    file = next((folder / each for each in wanted if (folder / each).is_file()), None)
    if file is None and name not in (None, "tesseract_requirements.txt"):
        raise bad_requirements(folder / str(name), "does not exist")
    return file


def project_dependencies(file: Path) -> list[str]:
    """The dependencies in a `pyproject.toml`.

    Raises:
        DefinitionError: it is not TOML, or does not list them (`bad_requirements`).
    """
    project = read_toml(file).get("project", {})
    if not isinstance(project, dict):
        raise bad_requirements(file, "has a `project` that is not a table")
    if "dependencies" in project.get("dynamic", ()):
        raise bad_requirements(file, "has dynamic dependencies; list them in a requirements.txt")
    return list(project.get("dependencies", ()))


def read_toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        DefinitionError: it is something else (`bad_requirements`).
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # also for text that is not UTF-8
        raise bad_requirements(file, f"is not TOML: {error}") from error


def bad_requirements(file: Path, reason: str) -> DefinitionError:
    """What to raise about a file of requirements."""
    return DefinitionError(f"{file} {reason}.", code="bad_requirements")


def environment_variables() -> dict[str, str]:
    """Variables for a process in an environment of its own: what `PYTHONPATH` names comes last there.

    Python itself would put it first, before what the component asks for.
    """
    variables = dict(os.environ)
    given = variables.pop("PYTHONPATH", None)
    return variables if given is None else {**variables, _LAST: given}


def _stamp(requirements: Path | None) -> str:
    content = b"" if requirements is None else requirements.read_bytes()
    return hashlib.sha256(sys.version.encode() + sys.prefix.encode() + content).hexdigest()


def _check_ours(folder: Path) -> None:
    if not any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta")):
        raise DefinitionError(
            f"{folder} exists and is not a virtual environment; name another folder for it.",
            code="environment_failed",
        )


def _create(folder: Path, python: Path, requirements: Path | None) -> None:
    is_conda = requirements is not None and requirements.suffix in _CONDA
    asked = [] if requirements is None or is_conda else _asked_of_pip(requirements)
    if requirements is not None and is_conda:
        create_with_conda(folder, requirements)
    else:
        venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # `addsitedir` also reads the .pth files there, by which editable installations are found.
    ours = [sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(ours)]
    lines.append(
        f"import os, sys; sys.path += filter(None, os.environ.get({_LAST!r}, '').split(os.pathsep))"
    )
    (packages / "zz_chainrule.pth").write_text("\n".join(lines) + "\n")
    if requirements is None or not asked:
        return
    # pip of this interpreter installs into the other: the environment needs none of its own.
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    done = subprocess.run(
        [*command, *asked],
        capture_output=True,
        text=True,
        cwd=requirements.parent,
        env=environment_variables(),
        check=False,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise DefinitionError(
            f"The requirements in {requirements} cannot be installed: {done.stderr.strip()[-500:]}",
            code="environment_failed",
        )


def _asked_of_pip(requirements: Path) -> list[str]:
    """pip's arguments for a file of requirements.

    Raises:
        DefinitionError: pip is too old for it (`environment_failed`).
    """
    if requirements.name == "pyproject.toml":
        return project_dependencies(requirements)
    if requirements.name.startswith("pylock"):
        with contextlib.suppress(PackageNotFoundError):
            installed = version("pip")
            if int(installed.partition(".")[0]) < _PIP_WITH_LOCKS:
                raise DefinitionError(
                    f"{requirements.name} needs pip {_PIP_WITH_LOCKS} or newer to be installed; found pip "
                    f"{installed}. Run {sys.executable} -m pip install --upgrade pip.",
                    code="environment_failed",
                )
    return ["-r", requirements.name]


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

"""A virtual environment for one component: its own requirements first, then what we have.

The environment falls back to the packages of this interpreter, so Chainrule and NumPy are there without being
installed again, and what the component asks for wins over what is found here. It is made once and made again
when the requirements or the interpreter change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from chainrule._errors import DefinitionError

__all__ = ["ensure_environment", "environment_variables"]

_FOLDER = ".chainrule-venv"
_STAMP = "chainrule-stamp"
_LAST = "CHAINRULE_PATH_LAST"
_REQUIREMENTS = ("requirements.txt", "tesseract_requirements.txt")


def ensure_environment(source: Path, folder: Path | None = None) -> Path:
    """The interpreter of a component's environment, which is made if it is not there.

    Args:
        source: the component's file or folder; requirements are read from a file beside it.
        folder: where the environment is; `.chainrule-venv` beside the component when not given.

    Raises:
        DefinitionError: the requirements cannot be installed (`environment_failed`).
    """
    home = source if source.is_dir() else source.parent
    folder = folder or home / _FOLDER
    python = folder / "bin" / "python"
    requirements = next((home / name for name in _REQUIREMENTS if (home / name).exists()), None)
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
    if not (folder / "pyvenv.cfg").exists():
        raise DefinitionError(
            f"{folder} exists and is not a virtual environment; name another folder for it.",
            code="environment_failed",
        )


def _create(folder: Path, python: Path, requirements: Path | None) -> None:
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # `addsitedir` also reads the .pth files there, by which editable installations are found.
    ours = [sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(ours)]
    lines.append(
        f"import os, sys; sys.path += filter(None, os.environ.get({_LAST!r}, '').split(os.pathsep))"
    )
    (packages / "zz_chainrule.pth").write_text("\n".join(lines) + "\n")
    if requirements is None:
        return
    # pip of this interpreter installs into the other: the environment needs none of its own.
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    done = subprocess.run(
        [*command, "-r", requirements.name],
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

"""A virtual environment for one component: its own requirements first, then what we have.

The environment falls back to the packages of this interpreter, so Chainrule and NumPy are there without being
installed again, and what the component asks for wins over what is found here. It is made once and made again
when the requirements or the interpreter change. `tesseract_config.yaml` may name another file of
requirements, or ask for conda.
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
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.client._conda import create_with_conda

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
        DefinitionError: there is no such folder (`module_missing`), or the requirements cannot be installed
            (`environment_failed`).
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
    wishes = _peer_wishes(home / "tesseract_config.yaml")
    if wishes.get("provider") == "conda":
        return home / "tesseract_environment.yaml"
    names = [*filter(None, [wishes.get("requirements_file")]), *_REQUIREMENTS]
    return next((home / name for name in names if (home / name).exists()), None)


def _peer_wishes(file: Path) -> dict[str, Any]:
    """`build_config.requirements` of the peer's project file."""
    if not file.exists():
        return {}
    import yaml

    node: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    for key in ("build_config", "requirements"):
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def environment_variables() -> dict[str, str]:
    """Variables for a process in an environment of its own: what `PYTHONPATH` names comes last there.

    Python itself would put it first, before what the component asks for.
    """
    variables = dict(os.environ)
    given = variables.pop("PYTHONPATH", None)
    return variables if given is None else {**variables, _LAST: given}


def _stamp(requirements: Path | None) -> str:
    if requirements is not None and not requirements.exists():
        raise DefinitionError(
            f"tesseract_config.yaml asks for conda, but there is no {requirements}.",
            code="environment_failed",
        )
    content = b"" if requirements is None else requirements.read_bytes()
    return hashlib.sha256(sys.version.encode() + sys.prefix.encode() + content).hexdigest()


def _check_ours(folder: Path) -> None:
    if not any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta")):
        raise DefinitionError(
            f"{folder} exists and is not a virtual environment; name another folder for it.",
            code="environment_failed",
        )


def _create(folder: Path, python: Path, requirements: Path | None) -> None:
    is_conda = requirements is not None and requirements.suffix == ".yaml"
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
    if requirements is None or is_conda:
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

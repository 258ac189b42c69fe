"""Which packages a component needs, from any of these files.

requirements.txt, tesseract_requirements.txt    pip's format; local paths are copied along
pylock.toml, pylock.<name>.toml                 PEP 751: exact versions and hashes
pyproject.toml                                  `project.dependencies`
environment.yaml, tesseract_environment.yaml    an environment of conda
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError

_USUAL = ("pylock.toml", "requirements.txt", "tesseract_requirements.txt", "pyproject.toml")
_LOCAL = re.compile(r"(?P<path>(?:\.|/|file://)[^\s\[;#]*)(?P<rest>.*)")
_IGNORED = shutil.ignore_patterns(
    "__pycache__", ".git", ".venv", ".chainrule-venv", ".tesseract-venv"
)


@dataclass(frozen=True)
class Requirements:
    """Packages to install.

    Attributes:
        name: file name in the build context; `requirements.txt`, `environment.yaml`, or that of a lock file.
        text: its content.
        local: name in `local_requirements/` → the folder or file to copy there.
    """

    name: str
    text: str
    local: dict[str, Path]

    @property
    def is_lock(self) -> bool:
        """Whether the file is a lock file, which is installed without resolving anything."""
        return self.name.endswith(".toml")

    @property
    def is_conda(self) -> bool:
        """Whether conda makes the environment."""
        return is_conda_file(self.name)

    def names(self, package: str) -> bool:
        """Whether a package is among them, by exactly this name."""
        pattern = rf'^\s*(?:name = "|- )?{re.escape(package)}(?![\w-])'
        return re.search(pattern, self.text, re.MULTILINE) is not None

    def write(self, folder: Path) -> None:
        """Write the file and what it refers to into a build context."""
        (folder / self.name).write_text(self.text, encoding="utf-8")
        target = folder / "local_requirements"
        target.mkdir()
        for name, source in self.local.items():
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=_IGNORED)
            else:
                shutil.copy2(source, target / name)


def read_requirements(folder: Path, name: str | None) -> Requirements:
    """The packages that the component in a folder needs.

    Args:
        folder: of the component.
        name: of the file there; the first of the usual names when not given. The peer's default file may
            be absent.

    Raises:
        DefinitionError: a file is missing or is not what its name says (`bad_requirements`).
    """
    wanted = [name] if name is not None else list(_USUAL)
    file = next((folder / each for each in wanted if (folder / each).is_file()), None)
    if file is None:
        if name is not None and name != "tesseract_requirements.txt":
            raise _bad(folder / name, "does not exist")
        return Requirements("requirements.txt", "", {})
    if file.name == "pyproject.toml":
        return Requirements("requirements.txt", _from_project(file), {})
    if re.fullmatch(r"pylock(\.[^.]+)?\.toml", file.name):
        return Requirements(file.name, _checked_lock(file), {})
    if is_conda_file(file.name):
        return _from_conda(file)
    return _from_lines(file)


def _from_conda(file: Path) -> Requirements:
    local: dict[str, Path] = {}
    try:
        text = conda_environment(file, lambda line: _staged(line, file, local))
    except ValueError as error:
        raise _bad(file, str(error)) from error
    return Requirements("environment.yaml", text, local)


def _from_lines(file: Path) -> Requirements:
    local: dict[str, Path] = {}
    lines = [_staged(line, file, local) for line in file.read_text(encoding="utf-8").splitlines()]
    return Requirements("requirements.txt", "".join(f"{line}\n" for line in lines), local)


def _staged(line: str, file: Path, local: dict[str, Path]) -> str:
    """The line, or for a local path the line that names its copy."""
    match = _LOCAL.fullmatch(line.strip())
    if match is None:
        return line
    source = (file.parent / match["path"].removeprefix("file://")).resolve()
    if not source.exists():
        raise _bad(file, f"names {match['path']}, which does not exist")
    name, count = source.name, 1
    while local.get(name, source) != source:
        name, count = f"{source.stem}_{count}{source.suffix}", count + 1
    local[name] = source
    return f"./local_requirements/{name}{match['rest']}"


def _from_project(file: Path) -> str:
    project = _read_toml(file).get("project", {})
    if "dependencies" in project.get("dynamic", ()):
        raise _bad(file, "has dynamic dependencies; list them in a requirements.txt")
    return "".join(f"{line}\n" for line in project.get("dependencies", ()))


def _checked_lock(file: Path) -> str:
    if "lock-version" not in _read_toml(file):
        raise _bad(file, "has no lock-version, so it is not a lock file of PEP 751")
    return file.read_text(encoding="utf-8")


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise _bad(file, f"is not TOML: {error}") from error


def _bad(file: Path, reason: str) -> DefinitionError:
    return DefinitionError(f"{file} {reason}.", code="bad_requirements")


def is_conda_file(name: str) -> bool:
    """Whether a file of requirements, by its name, is for conda."""
    return name.endswith((".yaml", ".yml"))


def conda_environment(file: Path, staged: Callable[[str], str]) -> str:
    """The text of an environment file in which local packages of pip are where the build finds them.

    Args:
        file: the environment file.
        staged: gives the line for a package of pip; local paths have to be changed.

    Raises:
        ValueError: the file is not an environment file; the message continues "…/environment.yaml".
    """
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("dependencies"), list):
        raise ValueError("has no list of dependencies, so it is not an environment of conda")
    content["dependencies"] = [_with_staged(entry, staged) for entry in content["dependencies"]]
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _with_staged(entry: Any, staged: Callable[[str], str]) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {kind: [staged(str(line)) for line in lines or ()] for kind, lines in entry.items()}

"""conda's environment files, such as the peer's `tesseract_environment.yaml`.

name: heat
channels: [conda-forge]
dependencies: [python=3.12, petsc4py, {pip: [./own_package]}]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


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

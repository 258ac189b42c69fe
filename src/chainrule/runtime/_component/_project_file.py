"""What the project file beside a component file says: `component.yaml`, or `tesseract_config.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError


def read_project_file(folder: Path) -> dict[str, Any]:
    """The mapping in the project file; empty when there is none.

    Raises:
        DefinitionError: the file is not a YAML mapping (`bad_project_file`).
    """
    names = ("component.yaml", "tesseract_config.yaml")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        return {}
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise _bad(file, f"is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise _bad(file, f"has to be a mapping; found {type(content).__name__}")
    return content


def _bad(file: Path, reason: str) -> DefinitionError:
    return DefinitionError(f"{file} {reason}.", code="bad_project_file")

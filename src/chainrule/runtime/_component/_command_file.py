"""`component.yaml`: a command and its schemas in one file.

name: heat
command: [./solve, "{input}", "{output}"]
inputs: {temperature: "differentiable float64[n]", dt: float}
outputs: {temperature: "differentiable float64[n]"}
derivatives: finite
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.runtime._component._command import from_command
from chainrule.runtime._component._definition import Definition

_KEYS = frozenset(
    (
        "name", "version", "description", "command", "inputs", "outputs", "format", "endpoints",
        "derivatives", "environment", "timeout_s", "build",
    )
)  # fmt: skip


def define_from_command_file(file: Path) -> Definition:
    """The component that a description file defines; the command runs in the file's folder.

    Raises:
        DefinitionError: the file is missing or incomplete.
    """
    content = _read(file)
    missing = [key for key in ("command", "inputs", "outputs") if key not in content]
    unknown = sorted(set(map(str, content)) - _KEYS)
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"has the unknown key {unknown[0]!r}"
        raise DefinitionError(
            f"{file} {problem}. A command description has: {', '.join(sorted(_KEYS))}.",
            code="bad_project_file",
        )
    command = content.pop("command")
    content.pop("build", None)  # how its image is made: see chainrule.deploy.images
    return from_command(command, folder=file.parent, **content)._definition


def _read(file: Path) -> dict[str, Any]:
    import yaml

    if not file.is_file():
        raise DefinitionError(f"No component file at {file}.", code="module_missing")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise DefinitionError(f"{file} is not YAML: {error}.", code="bad_project_file") from error
    if not isinstance(content, dict):
        raise DefinitionError(f"{file} has to be a mapping.", code="bad_project_file")
    return content

"""What will be built: settings, packages, files and commands, decided once for every kind of image.

`_recipes` writes the same plan as a Containerfile and as an Apptainer definition. The packages come from any
of these files (`read_requirements`):

requirements.txt, tesseract_requirements.txt    pip's format; local paths are copied along
pylock.toml, pylock.<name>.toml                 PEP 751: exact versions and hashes
pyproject.toml                                  `project.dependencies`
environment.yaml, tesseract_environment.yaml    an environment of conda
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError, InputError
from chainrule.client.internal import (
    bad_requirements,
    project_dependencies,
    read_toml,
    requirements_file,
)
from chainrule.deploy.images._settings import Changes, ImageSettings, read_settings
from chainrule.runtime.internal import COMPONENT_FILES, check_sources, split_source

TOKEN_FILE = "/run/chainrule/token"
"""Where a container finds the token that its callers must send."""


@dataclass(frozen=True)
class BuildPlan:
    """Everything that determines an image.

    Attributes:
        folder: of the component.
        entry: the component's file in it, with `:name` where a file has several.
        settings: of the image.
        requirements: packages to install.
    """

    folder: Path
    entry: str
    settings: ImageSettings
    requirements: Requirements

    @property
    def wheel(self) -> str:
        """File name of the wheel of Chainrule."""
        return f"chainrule-{version('chainrule')}-py3-none-any.whl"

    @property
    def place(self) -> str:
        """The component in the image."""
        return f"/component/{self.entry}"

    @cached_property
    def package_data(self) -> tuple[tuple[Path, str], ...]:
        """Sources on this machine, and places in the image.

        Raises:
            DefinitionError: a source is missing, or two have the same place (`bad_project_file`).
        """
        pairs = [(self.folder / src, dst) for src, dst in self.settings.package_data]
        missing = [src for src, _ in pairs if not src.exists()]
        if missing:
            raise DefinitionError(
                f"package_data names {missing[0]}, which does not exist.", code="bad_project_file"
            )
        if len({dst for _, dst in pairs}) < len(pairs):
            raise DefinitionError(
                "package_data names one place in the image twice.", code="bad_project_file"
            )
        return tuple(pairs)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the image."""
        settings = self.settings
        devices = {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
        return {
            "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/home/component",
            "USER": "component",
            "LOGNAME": "component",
            "PYTHONUNBUFFERED": "1",
            "CHAINRULE_COMPONENT": self.place,
            **(devices if settings.gpu else {}),
            **settings.env,
        }

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the image; `build_image` adds those that only a loaded component knows."""
        settings = self.settings
        return {
            "org.opencontainers.image.title": settings.name,
            "org.opencontainers.image.version": settings.version,
            "org.opencontainers.image.description": settings.description,
            "chainrule.component": settings.name,
            "chainrule.version": version("chainrule"),
            "chainrule.gpu": json.dumps(settings.gpu),
            "chainrule.sbom": "/opt/chainrule/sbom.cdx.json",
            "chainrule.metadata": json.dumps(dict(settings.metadata), sort_keys=True),
        }

    @property
    def scripts(self) -> tuple[str, str]:
        """The scripts that fetch the tools of the installation, and that install."""
        if self.requirements.is_conda:
            return "conda_tools.sh", "conda_install.sh"
        return "tools.sh", "install.sh"

    def install_command(self, build_folder: str) -> list[str]:
        """The command that installs the Python packages, given where the build files are."""
        settings = self.settings
        # The derivatives of a component that uses JAX need this extra.
        own = ["jax"] if self.requirements.names("jax") else []
        extras = ",".join(dict.fromkeys(["serve", *settings.extras, *own]))
        chainrule = f"chainrule[{extras}] @ file://{build_folder}/{self.wheel}"
        _, script = self.scripts
        if self.requirements.is_conda:
            return ["sh", f"{build_folder}/{script}", chainrule, self.requirements.name]
        inherit = "--inherit" if settings.inherit_packages else ""
        options = [self.requirements.name, settings.python or "", inherit]
        return ["sh", f"{build_folder}/{script}", chainrule, *options]

    def finish_command(self) -> list[str]:
        """The last step: the bill of materials, and the checks that were asked for."""
        settings = self.settings
        # -P: without it, a file of the component would hide a package of the same name.
        module = ["-P", "-m", "chainrule.deploy.images._inside"]
        command = ["/opt/venv/bin/python", *module, self.place]
        command += ["--check"] if settings.check else []
        command += ["--run-tests"] if settings.run_tests else []
        if settings.check_gradients is not None:
            command += ["--check-gradients", f"/component/{settings.check_gradients}"]
        return command

    def health_command(self) -> list[str]:
        """The command that checks whether the server in a container answers."""
        return ["/opt/venv/bin/python", "-I", "/opt/chainrule/healthcheck.py"]

    def serve_command(self) -> list[str]:
        """The default command of a container; without a token the server refuses to start."""
        # Loopback in a container is the container's own, and cannot be reached from outside.
        where = ["--host", "0.0.0.0", "--port", "8000", "--token-file", TOKEN_FILE]
        folders = ["--input-path", "/input", "--output-path", "/output"]
        return ["serve", self.place, *where, *folders]


def plan_build(
    source: str | Path, *, changes: Changes | None = None, **overrides: object
) -> BuildPlan:
    """What the image of a component will be.

    Args:
        source: the component's folder, its file, or `file.py:name`.
        changes: values to put into the folder's project file, by their keys from the top.
        **overrides: fields of `ImageSettings` that win over the folder's own; `None` leaves them.

    Raises:
        InputError: there is no component (`component_missing`).
        DefinitionError: its settings or its requirements are malformed, or its source is not Python.
    """
    path, attribute = split_source(str(source))
    if path.is_dir():
        found = (name for name in COMPONENT_FILES if (path / name).is_file())
        folder, entry = path, next(found, None)
    else:
        folder, entry = path.parent, path.name if path.is_file() else None
    if entry is None:
        raise InputError(
            f"There is no component at {str(source)!r}: expected a folder with one of "
            f"{', '.join(COMPONENT_FILES)}, or a file. `chainrule init` starts one.",
            code="component_missing",
        )
    settings = read_settings(folder, changes=changes, **overrides)
    _check_files(folder, settings)
    if settings.check and entry.endswith(".py"):
        check_sources(folder / entry, other_python=True)
    requirements = read_requirements(folder, settings.requirements)
    entry = f"{entry}:{attribute}" if attribute else entry
    return BuildPlan(folder, entry, settings, _with_cuda(requirements, settings))


def _check_files(folder: Path, settings: ImageSettings) -> None:
    payload = settings.check_gradients
    if payload is not None and not (folder / payload).is_file():
        raise InputError(
            f"The payload for the gradient check, {folder / payload}, does not exist; it has to be in "
            "the component's folder.",
            code="payload_missing",
        )


def _with_cuda(requirements: Requirements, settings: ImageSettings) -> Requirements:
    """The requirements with JAX's plugin for NVIDIA devices, which is a package of its own."""
    needs_jax = "jax" in settings.extras or requirements.names("jax")
    # conda chooses a build of JAX with CUDA by itself, where the building machine has CUDA.
    if not (settings.gpu and needs_jax) or requirements.is_lock or requirements.is_conda:
        return requirements
    text = f"{requirements.text}jax[cuda12]\n"
    return Requirements(requirements.name, text, requirements.local)


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
    file = requirements_file(folder, name)
    if file is None:
        return Requirements("requirements.txt", "", {})
    if file.name == "pyproject.toml":
        lines = "".join(f"{line}\n" for line in project_dependencies(file))
        return Requirements("requirements.txt", lines, {})
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
        raise bad_requirements(file, str(error)) from error
    return Requirements("environment.yaml", text, local)


def _from_lines(file: Path) -> Requirements:
    local: dict[str, Path] = {}
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise bad_requirements(file, f"is not UTF-8: {error}") from error
    lines = [_staged(line, file, local) for line in text.splitlines()]
    return Requirements("requirements.txt", "".join(f"{line}\n" for line in lines), local)


def _staged(line: str, file: Path, local: dict[str, Path]) -> str:
    """The line, or for a local path the line that names its copy."""
    match = _LOCAL.fullmatch(line.strip())
    if match is None:
        return line
    source = (file.parent / match["path"].removeprefix("file://")).resolve()
    if not source.exists():
        raise bad_requirements(file, f"names {match['path']}, which does not exist")
    name, count = source.name, 1
    while local.get(name, source) != source:
        name, count = f"{source.stem}_{count}{source.suffix}", count + 1
    local[name] = source
    return f"./local_requirements/{name}{match['rest']}"


def _checked_lock(file: Path) -> str:
    if "lock-version" not in read_toml(file):
        raise bad_requirements(file, "has no lock-version, so it is not a lock file of PEP 751")
    return file.read_text(encoding="utf-8")


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

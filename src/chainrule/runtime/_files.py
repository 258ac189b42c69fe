"""Fields that name files: `InputPath` and `OutputPath`, and `require_file` for files a component needs.

    InputPath    a file or folder the caller names, inside the component's `input_path`. In memory an
                 absolute path.
    OutputPath   a file or folder the author made, inside `output_path`. In memory an absolute path,
                 written relative to `output_path`.

Both are refused when they lead out of their folder, links followed, and when nothing is there. Validators
that are added with `Annotated` see the absolute path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, PlainSerializer, ValidationInfo

from chainrule._codec import Grants
from chainrule._errors import InputError, NotGrantedError
from chainrule.runtime._runs import get_config

__all__ = ["InputPath", "OutputPath", "require_file"]


def _inside(folder: Path | None, path: Path) -> str:
    """The path relative to its folder; `Grants` says whether it stays there."""
    if folder is not None and path.is_absolute():
        try:
            return str(Path(os.path.realpath(path)).relative_to(os.path.realpath(folder)))
        except ValueError:
            raise NotGrantedError(
                "Expected a path inside the granted folder; found an absolute path elsewhere.",
                code="path_not_granted",
            ) from None
    return str(path)


def _must_exist(path: Path, name: str) -> Path:
    if not path.exists():
        raise InputError(
            f"Nothing exists at the path that was given, below {name}.", code="file_missing"
        )
    return path


def _context_grants(info: ValidationInfo) -> tuple[Grants, bool]:
    context = info.context or {}
    return context.get("grants") or get_config().grants, bool(context.get("skip_path_checks"))


def _input_path(path: Path, info: ValidationInfo) -> Path:
    grants, is_unchecked = _context_grants(info)
    if is_unchecked:
        return path
    return _must_exist(grants.input_path(_inside(grants.input_dir, path)), "input_path")


def _output_path(path: Path, info: ValidationInfo) -> Path:
    grants, is_unchecked = _context_grants(info)
    if is_unchecked:
        return path
    return _must_exist(grants.output_path(_inside(grants.output_dir, path)), "output_path")


def _relative_to_output(path: Path) -> str:
    folder = get_config().output_path
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


InputPath = Annotated[Path, AfterValidator(_input_path), PlainSerializer(str, return_type=str)]
"""An existing file or folder inside the component's `input_path`."""

OutputPath = Annotated[
    Path, AfterValidator(_output_path), PlainSerializer(_relative_to_output, return_type=str)
]
"""An existing file or folder inside the component's `output_path`."""


def require_file(file_path: str | Path) -> Path:
    """The absolute path of a regular file that a component needs inside its `input_path`.

    Args:
        file_path: relative to `input_path`.

    Returns:
        The path; as it was given, unchecked, when the component's `require_files` is off.

    Raises:
        NotGrantedError: the path leads out of the folder.
        InputError: there is no such file (`file_missing`), or it is not a regular file
            (`not_a_file`).
    """
    config = get_config()
    if not config.require_files:
        return Path(file_path)
    found = config.grants.input_path(str(file_path))
    if not found.exists():
        raise InputError(
            f"The component needs the file {str(file_path)!r} inside its input_path; there is none. "
            "Put it there, or point input_path at its folder.",
            code="file_missing",
        )
    if not found.is_file():
        raise InputError(
            f"The component needs a regular file {str(file_path)!r} inside its input_path; found "
            "something else there.",
            code="not_a_file",
        )
    return found

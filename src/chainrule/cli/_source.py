"""The component that a command is about."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._quick import uncollected
from chainrule.runtime.internal import (
    ComponentConfig,
    LocalComponent,
    check_syntax,
    file_in,
    load_component,
)

_DESCRIBE = {"require_files": False}


def open_component(
    options: Namespace, config: ComponentConfig | Mapping[str, Any] | None = None
) -> LocalComponent:
    """Load the component that the caller named with `add_component`'s arguments.

    Raises:
        InputError: there is no such file (`component_missing`): the caller's mistake, not the author's.
    """
    check_exists(options.component)
    with uncollected():
        return load_component(
            options.component, config=config, redirect_peer=not options.peer_imports
        )


def read_document(options: Namespace) -> dict[str, Any]:
    """The OpenAPI document of the component that the caller named with `add_component_or_url`'s arguments.

    Nothing is run, so the files that a run needs may be missing.
    """
    with opened(options, _DESCRIBE) as component:
        return component.openapi_schema


@contextmanager
def opened(
    options: Namespace, config: ComponentConfig | Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """The component that the caller named with `add_component_or_url`'s arguments, here or elsewhere."""
    if not is_url(options.component):
        yield open_component(options, config)
        return
    from chainrule.cli._remote import open_served

    with open_served(options) as served:
        yield served


def is_url(component: str) -> bool:
    """Whether a component is named by where it is served."""
    return component.startswith(("http://", "https://"))


def check_exists(component: str) -> None:
    """Refuse a component that is not there.

    Raises:
        InputError: there is no such file (`component_missing`), or it is a URL (`component_not_here`).
    """
    if is_url(component):
        raise InputError(
            f"This command needs the component's files; found the URL {component}. Name a module file, "
            "its folder, file.py:name, or a component.yaml.",
            code="component_not_here",
        )
    file = _file(component)
    if not file.exists():
        raise InputError(
            f"There is no component at {str(file)!r}. Name a module file, its folder, file.py:name, or "
            "a component.yaml; `chainrule init` starts one.",
            code="component_missing",
        )


def check_source(component: str) -> None:
    """Refuse a component that is not there, or whose file is not Python, before anything else is looked at.

    Raises:
        InputError: as in `check_exists`.
        DefinitionError: the folder has no component (`module_missing`), or its file cannot be compiled
            (`module_failed`).
    """
    check_exists(component)
    file = _file(component)
    if file.is_dir():
        file = file_in(file)
    if file.suffix == ".py":
        check_syntax(file)


def component_folder(options: Namespace) -> Path:
    """The folder that the component lies in; the working directory for one that is served elsewhere."""
    if is_url(options.component):
        return Path()
    file = _file(options.component)
    return file if file.is_dir() else file.parent


def _file(source: str) -> Path:
    return Path(source.rpartition(":")[0] if ".py:" in source else source)

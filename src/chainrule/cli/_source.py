"""The component that a command is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.runtime._component import LocalComponent, load_component

__all__ = ["open_component"]


def open_component(
    source: str, settings: Mapping[str, Any] | None = None, *, redirect_peer: bool = True
) -> LocalComponent:
    """Load the component that the caller named.

    Raises:
        InputError: there is no such file (`component_missing`): the caller's mistake, not the author's.
    """
    file = source.rpartition(":")[0] if ".py:" in source else source
    if not Path(file).exists():
        raise InputError(
            f"There is no component at {file!r}. Name a module file, its folder, file.py:name, or a "
            "component.yaml; `chainrule init` starts one.",
            code="component_missing",
        )
    return load_component(source, config=settings, redirect_peer=redirect_peer)

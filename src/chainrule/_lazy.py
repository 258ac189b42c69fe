"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its modules on demand.

    Args:
        package: its `__name__`.
        homes: name → the module that defines it.

    Example:
        >>> get, names = lazy_names("chainrule._lazy", {"sqrt": "math"})
        >>> get("sqrt")(4.0)
        2.0
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        # The next access finds it without coming here.
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes)

"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *own: str, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its modules on demand.

    Args:
        package: its `__name__`.
        homes: name → the module that defines it, or the module of that name itself.
        *own: further public names, which the package defines.
        extra: what to install for names whose module needs more packages: `chainrule[extra]`.

    Example:
        >>> get, names = lazy_names("chainrule._lazy", {"sqrt": "math"})
        >>> get("sqrt")(4.0)
        2.0
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(homes[name])
        except ModuleNotFoundError as error:
            if extra is not None:
                error.add_note(
                    f"{package}.{name} needs more packages: pip install 'chainrule[{extra}]'."
                )
            raise
        value = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        # The next access finds it without coming here.
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted((*homes, *own))

"""Modules that only pass on the names of a native module, under the ancestor's name.

`PEER_MODULES` says which native module belongs to which name; component files are loaded with the same table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from chainrule.runtime.internal import PEER_MODULES


def mirror(name: str, *more: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the stand-in for a module of `tesseract_core`.

    The native module is imported when one of its names is first used, so that a NumPy component does not load
    JAX.

    Args:
        name: the ancestor's name of the module.
        *more: names that the stand-in itself adds.
    """
    native = PEER_MODULES[name]

    def get(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return getattr(importlib.import_module(native), attribute)

    def names() -> list[str]:
        return [*importlib.import_module(native).__all__, *more]

    return get, names

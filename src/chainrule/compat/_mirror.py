"""Modules that only pass on the names of a native module, under the name the ancestor gave them.

Which module stands for which is known in one place, the table that component files are loaded with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from chainrule.runtime.internal import PEER_MODULES


def mirror(name: str, *more: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the stand-in for a module of `tesseract_core`.

    The native module is imported when a name is first asked for: a NumPy component never pays for JAX.

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

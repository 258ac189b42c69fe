"""tesseract-core 1.15 on Chainrule: handles to components, and what their authors import.

`Tesseract` is a handle to a component; `runtime` has the types and helpers of a `tesseract_api.py`;
`build_tesseract`, `run_tesseract`, `serve` and `teardown` are about images and containers. Names are loaded
when they are first used: an author's file that imports `runtime` pays for nothing else.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.compat.tesseract_core import runtime
    from chainrule.compat.tesseract_core._containers import (
        build_tesseract,
        run_tesseract,
        serve,
        teardown,
    )
    from chainrule.compat.tesseract_core._tesseract import Tesseract

__all__ = [
    "Tesseract",
    "__version__",
    "build_tesseract",
    "run_tesseract",
    "runtime",
    "serve",
    "teardown",
]

__version__ = "1.15.0"
"""The release whose names and behaviour this package has."""

_CONTAINERS = ("build_tesseract", "run_tesseract", "serve", "teardown")
_HOMES = {"Tesseract": "_tesseract", **dict.fromkeys(_CONTAINERS, "_containers")}


def __getattr__(name: str) -> Any:
    if name == "runtime":
        return _importlib.import_module("chainrule.compat.tesseract_core.runtime")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(
        _importlib.import_module(f"chainrule.compat.tesseract_core.{_HOMES[name]}"), name
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

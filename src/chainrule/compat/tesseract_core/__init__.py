"""tesseract-core 1.15 on Chainrule: handles to components, and what their authors import.

Names are loaded when they are first used, so that an author's file that imports `runtime` loads nothing else.
Modules, in reading order:

    _tesseract    `Tesseract`, a handle to a component
    _failures     the ancestor's exceptions for ours
    _containers   `build_tesseract`, `run_tesseract`, `serve`, `teardown`: images and containers
    runtime       the types and helpers of a `tesseract_api.py`, and the command `tesseract-runtime`
"""

from typing import TYPE_CHECKING

from chainrule._lazy import lazy_names as _lazy_names

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
__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "Tesseract": f"{__name__}._tesseract",
        "runtime": f"{__name__}.runtime",
        **dict.fromkeys(_CONTAINERS, f"{__name__}._containers"),
    },
    "__version__",
)

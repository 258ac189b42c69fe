"""tesseract-core 1.15 on Chainrule: handles to components, and what their authors import.

`Tesseract` is a handle to a component; `runtime` has the types and helpers of a `tesseract_api.py`. Building
images and running containers is left to the original.
"""

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

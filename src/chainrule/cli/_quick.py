"""Start without collecting garbage.

Imports make hundreds of thousands of objects, and all of them stay to the end: looking through them again
and again for garbage is a sixth of the time until a command does its work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside; what was made inside is never looked at again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

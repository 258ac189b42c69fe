"""Masked arrays have entries without a value, which no schema, no format and no other framework knows.

NumPy hands out what lies below the mask when it is asked for a plain array. So they are refused wherever
arrays come in: the one test and the one text are here.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

MASKED = "array_masked"
"""Code of the error."""

WHY_MASKED = (
    "a masked array, whose masked entries have no value; fill them, `array.filled(value)`, or leave them "
    "out, `array.compressed()`"
)

_MAX_RANK = 64
_NUMBERS = frozenset((int, float))


def has_masked(value: Any) -> bool:
    """Whether a value, or one inside nested lists, is a masked array with masked entries."""
    # Looked up: whoever has a masked array has imported `numpy.ma`, nobody else should.
    numpy_ma = sys.modules.get("numpy.ma")
    return numpy_ma is not None and _has_masked(value, numpy_ma, _MAX_RANK)


def _has_masked(value: Any, numpy_ma: Any, max_depth: int) -> bool:
    if not isinstance(value, (list, tuple)):
        return isinstance(value, numpy_ma.MaskedArray) and bool(numpy_ma.is_masked(value))
    if not value or not max_depth:
        return False
    if type(value[0]) in _NUMBERS:
        # A sum with a masked term is masked, and adding is faster than looking at every number. These are
        # looked at where something else is among them.
        with suppress(ArithmeticError, TypeError, ValueError, Warning):
            return _has_masked(sum(value), numpy_ma, 0)
    return any(_has_masked(item, numpy_ma, max_depth - 1) for item in value)

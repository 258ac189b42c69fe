"""The one walk over nested data on its way out: plain values stay, everything else is handed to a hook."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from chainrule._errors import DefinitionError

__all__ = ["is_array", "lower", "to_plain"]

_PLAIN = frozenset((str, bool, type(None)))
_NUMBERS = frozenset((int, float, bool))
_INT64 = range(-(2**63), 2**64)


def lower(node: Any, leaf: Callable[[Any], Any], escape: Callable[[Any], Any] | None = None) -> Any:
    """A copy of nested data made of dicts, lists and what JSON can carry.

    Args:
        node: mappings, sequences, models and leaves.
        leaf: called for every other leaf: arrays, NaN and infinities, integers beyond 64 bits, and
            objects of other types.
        escape: called with every lowered mapping, for formats that give some mappings a meaning.
    """
    kind = type(node)
    if kind in _PLAIN:
        return node
    if kind is np.ndarray:
        return leaf(node)
    if kind is float:
        return node if math.isfinite(node) else leaf(node)
    if kind is int:
        return node if node in _INT64 else leaf(node)
    if kind is dict:
        lowered = {
            key: leaf(value) if type(value) is np.ndarray else lower(value, leaf, escape)
            for key, value in node.items()
        }
        return lowered if escape is None else escape(lowered)
    if kind is list or kind is tuple:
        return node if _is_plain_numbers(node) else [lower(value, leaf, escape) for value in node]
    return _lower_other(node, leaf, escape)


def _lower_other(node: Any, leaf: Callable[[Any], Any], escape: Callable[[Any], Any] | None) -> Any:
    if is_array(node):
        return leaf(node)
    if isinstance(node, BaseModel):
        return lower(node.model_dump(mode="python"), leaf, escape)
    if isinstance(node, Mapping):
        return lower(dict(node), leaf, escape)
    if isinstance(node, (list, tuple)):
        return lower(list(node), leaf, escape)
    return leaf(node)


def _is_plain_numbers(values: Any) -> bool:
    """Whether a list can be kept as it is: small finite numbers only. Long lists of floats are common."""
    if not values or not _NUMBERS.issuperset(map(type, values)):
        return False
    try:
        # A sum is finite only if all its terms are; beyond this bound an integer may be too long.
        return math.isfinite(sum(values)) and max(values) < 2**63 and min(values) >= -(2**63)
    except OverflowError:
        return False


def is_array(value: Any) -> bool:
    """Whether a leaf holds array data: NumPy arrays and scalars, JAX and torch arrays, references."""
    return hasattr(value, "__array__") or isinstance(value, complex)


def to_plain(value: Any) -> Any:
    """What JSON can say about a leaf that is neither plain nor an array (dates, paths, enums, sets).

    Raises:
        DefinitionError: nothing (`not_encodable`).
    """
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, TypeError):
        raise DefinitionError(
            f"A value of type {type(value).__name__} cannot be encoded. Return arrays, numbers, text, "
            "and mappings or lists of them.",
            code="not_encodable",
        ) from None

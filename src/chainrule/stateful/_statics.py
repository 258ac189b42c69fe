"""Equality and hash for what a model holds beside arrays: names, functions, options, small arrays.

`Static` makes any object usable as auxiliary data of a pytree and as part of a cache key. Two statics are
equal when using one for the other cannot be noticed: containers are compared item by item, arrays by
content, `nan` equals itself, everything else by `==` with identity first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

__all__ = ["Static", "same"]


class Static:
    """A hashable, comparable box around one object.

    The hash is coarse where the object is unhashable: equality decides, the hash only has to agree
    with it.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and same(self.value, other.value)

    def __hash__(self) -> int:
        return _coarse_hash(self.value)

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


def same(a: Any, b: Any) -> bool:
    """Whether one object can stand for the other."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (np.ndarray, jax.Array)):
        return _same_array(a, b)
    try:
        return bool(a == b) or bool(a != a and b != b)
    except Exception:
        # An `==` that cannot answer with one truth value (elementwise, or raising) says "different".
        return False


def _same_array(a: Any, b: Any) -> bool:
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    return (
        a.shape == b.shape and a.dtype == b.dtype and bool(np.all(np.asarray(a) == np.asarray(b)))
    )


def _coarse_hash(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return hash((type(value), *map(_coarse_hash, value)))
    if isinstance(value, Mapping):
        return hash((type(value), len(value)))
    if isinstance(value, float) and value != value:
        return hash("nan")
    try:
        return hash(value)
    except TypeError:
        return hash(type(value))

"""Copies of arrays, so that the caller and the author of a component never share memory.

An author gets copies of what the caller passed, and the caller gets copies of what the author returned. Both
may then keep, overwrite and share their arrays, and the other never sees a change. An array is copied once,
where it crosses from one to the other: inputs while they are validated
(`runtime._schema._validation`), results at the end of `LocalComponent.call`. Code that calls an author's
function several times with the same inputs (`runtime._derivatives`) makes a copy for every call.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from chainrule._device import is_on_device, is_tensor
from chainrule._trees import map_leaves

_IMMUTABLE = (str, bytes, int, float, complex, type(None), np.generic)


def own_copy(tree: Any) -> Any:
    """The same tree with a writable copy of every array of NumPy, torch or a GPU in it.

    Dictionaries, lists, tuples, models and dataclasses are rebuilt; other objects are shared.
    """
    return map_leaves(_own_copy_of_leaf, tree)


def _own_copy_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, _IMMUTABLE):
        return leaf
    if is_dataclass(leaf) and not isinstance(leaf, type):
        twin = copy.copy(leaf)
        for field in fields(leaf):
            # Past `__setattr__`, which frozen classes forbid.
            object.__setattr__(twin, field.name, own_copy(getattr(leaf, field.name)))
        return twin
    return own_copy_of_array(leaf)


def own_copy_of_array(leaf: Any) -> Any:
    """A copy of an array whose memory can be written to; any other value itself."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    # `clone` is torch's, on every device. CuPy and other arrays of a GPU have `copy`.
    if is_tensor(leaf):
        return leaf.clone()
    if is_on_device(leaf) and hasattr(leaf, "copy"):
        return leaf.copy()
    return leaf

"""Arrays that belong to one side only.

Memory has one user: an author gets copies of what the caller passed, and the caller gets copies of what the
author returned. Both may then keep, overwrite and share their arrays, and the other never sees a change. An
array is copied once, where it crosses from one to the other: inputs while they are validated
(`_schema._validate`), results at the end of `LocalComponent.call`. Code that calls an author's function
several times with the same inputs (`_derivatives`) makes a copy for every call.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

_IMMUTABLE = (str, bytes, int, float, complex, bool, type(None), np.generic)


def own_copy(tree: Any) -> Any:
    """The same tree with a writable copy of every array of NumPy, torch or a GPU in it.

    Dictionaries, lists, tuples, models and dataclasses are rebuilt; other objects are shared.
    """
    kind = type(tree)
    if kind is np.ndarray:
        return tree.copy()
    if kind is dict:
        return {key: own_copy(value) for key, value in tree.items()}
    if kind is list:
        return [own_copy(item) for item in tree]
    return tree if isinstance(tree, _IMMUTABLE) else _own_copy_of_rare(tree)


def _own_copy_of_rare(tree: Any) -> Any:
    if isinstance(tree, BaseModel):
        # `model_copy` does not validate again, and puts extra fields where they belong.
        return tree.model_copy(update={name: own_copy(value) for name, value in tree})
    if isinstance(tree, tuple):
        parts = [own_copy(item) for item in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, (dict, list)):
        clone = copy.copy(tree)  # of a class of the author's
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            clone[key] = own_copy(value)
        return clone
    if is_dataclass(tree) and not isinstance(tree, type):
        twin = copy.copy(tree)
        for field in fields(tree):
            # Past `__setattr__`, which frozen classes forbid.
            object.__setattr__(twin, field.name, own_copy(getattr(tree, field.name)))
        return twin
    return own_copy_of_array(tree)


def own_copy_of_array(leaf: Any) -> Any:
    """A copy of an array whose memory can be written to; anything else as it is."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    # `clone` is torch's, on every device. CuPy and other arrays of a GPU have `copy`.
    if hasattr(leaf, "untyped_storage"):
        return leaf.clone()
    if hasattr(leaf, "__cuda_array_interface__") and hasattr(leaf, "copy"):
        return leaf.copy()
    return leaf

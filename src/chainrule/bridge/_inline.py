"""Inlining: a component written in JAX becomes part of the caller's program.

Its function is traced with the caller's tracers, so every transformation works to any order and XLA fuses
across the border. What the schema would check on values is checked once per signature on shapes and dtypes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._trees import LRUCache, is_arraylike
from chainrule.bridge._skeleton import Skeleton, take_apart
from chainrule.bridge._target import Target
from chainrule.bridge._types import ArrayType

__all__ = ["NotTraceableError", "call_inline", "check_signature"]

_NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class NotTraceableError(Exception):
    """The function needs the numbers themselves; it has to be called on the host."""


def call_inline(target: Target, skeleton: Skeleton, arrays: Sequence[Any]) -> Any:
    """Trace the component's function into the current program.

    Raises:
        NotTraceableError: it cannot be traced.
    """
    assert target.jax_function is not None
    cast = [
        _cast(array, target.input_dtype(path))
        for array, path in zip(arrays, skeleton.paths, strict=True)
    ]
    try:
        outputs = target.jax_function(skeleton.build(cast))
    except _NOT_TRACEABLE as error:
        raise NotTraceableError from error
    output_skeleton, results = take_apart(outputs, lambda path, leaf: is_arraylike(leaf))
    return output_skeleton.build([jnp.asarray(result) for result in results])


def _cast(array: Any, wanted: np.dtype[Any] | None) -> Any:
    held = None if wanted is None else jax.dtypes.canonicalize_dtype(wanted)
    return array if held is None or held == array.dtype else array.astype(held)


_checked: weakref.WeakKeyDictionary[Target, LRUCache[Hashable, bool]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_SIGNATURES_PER_TARGET = 512


def check_signature(target: Target, skeleton: Skeleton, arrays: Sequence[Any]) -> None:
    """Validate shapes, dtypes and static leaves against the schema, once per signature.

    Raises:
        InputError: they do not fit.
    """
    is_symbolic = any(not isinstance(size, int) for array in arrays for size in array.shape)
    if is_symbolic or "abstract_eval" not in target.endpoints:
        return
    types = [
        ArrayType(array.shape, target.input_dtype(path) or np.dtype(array.dtype))
        for array, path in zip(arrays, skeleton.paths, strict=True)
    ]
    with _lock:
        checked = _checked.setdefault(target, LRUCache(_SIGNATURES_PER_TARGET))
    key = skeleton.signature(types)
    if key is None or key not in checked:
        target.abstract_eval(skeleton.build(types))
        if key is not None:
            checked.put(key, True)

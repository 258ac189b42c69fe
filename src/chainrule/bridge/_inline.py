"""Inlining: a component written in JAX becomes part of the caller's program.

Its function is traced with the caller's tracers, so every transformation works to any order and XLA fuses
across the border. What the schema would check on values is checked once per signature on shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from numbers import Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._jaxpr import component_scope
from chainrule._lru_cache import LRUCache
from chainrule._trees import is_arraylike
from chainrule.bridge._precision import warn_if_narrowed
from chainrule.bridge._skeleton import Skeleton, take_apart
from chainrule.bridge._target import Target
from chainrule.bridge._types import ArrayType, dtype_to_send
from chainrule.runtime.internal import DimensionTable

NOT_TRACEABLE = (
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
        InputError: shapes, dtypes or static leaves do not fit the schema.
        ComponentError: the outputs do not.
    """
    assert target.jax_function is not None
    completed, types, sizes = _complete(target, skeleton, arrays)
    warn_if_narrowed(target, {p: t.dtype for p, t in zip(completed.paths, types, strict=True)})
    by_path = dict(zip(skeleton.paths, arrays, strict=True))
    if any(path not in by_path for path in completed.paths):
        raise NotTraceableError  # a default that only the component itself knows
    cast = [
        _cast(by_path[path], type_.dtype)
        for path, type_ in zip(completed.paths, types, strict=True)
    ]
    try:
        with component_scope(target.name):
            outputs = _plain(target.jax_function(completed.build(cast)))
    except NOT_TRACEABLE as error:
        raise NotTraceableError from error
    output_skeleton, results = take_apart(outputs, partial(_is_result, target))
    pairs = zip(output_skeleton.paths, results, strict=True)
    sizes = dict(sizes)
    return output_skeleton.build(
        [_fit(target, path, jnp.asarray(result), sizes) for path, result in pairs]
    )


def _is_result(target: Target, path: str, leaf: Any) -> bool:
    """An array, or a number that stands for one."""
    return is_arraylike(leaf) or (isinstance(leaf, Number) and target.is_array_output(path))


def _plain(node: Any) -> Any:
    """The containers that an endpoint would make of those that a function returns."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    return [_plain(item) for item in node] if isinstance(node, (list, tuple)) else node


def _fit(target: Target, path: str, result: Any, sizes: DimensionTable) -> Any:
    """A result as the schema declares it, which its endpoint would make of it."""
    if has_symbolic_size(result):
        return result
    found = ArrayType(tuple(result.shape), np.dtype(result.dtype))
    wanted = target.fit_output(path, found, sizes)
    shaped = result if wanted.shape == result.shape else jnp.broadcast_to(result, wanted.shape)
    return _cast(shaped, wanted.dtype)


def has_symbolic_size(array: Any) -> bool:
    """Sizes of `jax.export`, which no schema knows."""
    return any(not isinstance(size, int) for size in array.shape)


def _cast(array: Any, wanted: np.dtype[Any]) -> Any:
    held = jax.dtypes.canonicalize_dtype(wanted)
    return array if held == array.dtype else array.astype(held)


Completed = tuple[Skeleton, list[ArrayType], DimensionTable]


def _complete(target: Target, skeleton: Skeleton, arrays: Sequence[Any]) -> Completed:
    """The inputs as the schema sees them, defaults filled in and checked, and named sizes; per signature."""
    types = tuple(
        ArrayType(tuple(array.shape), dtype_to_send(array.dtype, target.input_dtype(path)))
        for path, array in zip(skeleton.paths, arrays, strict=True)
    )
    if any(map(has_symbolic_size, arrays)):
        return skeleton, list(types), {}
    known: LRUCache[Hashable, Completed] = target.memory("completed")
    key = skeleton.signature(types)
    found = None if key is None else known.get(key)
    if found is None:
        completed, sizes = target.complete_inputs(skeleton.build(types))
        found = *take_apart(completed, lambda path, leaf: isinstance(leaf, ArrayType)), sizes
        if key is not None:
            known.put(key, found)
    return found

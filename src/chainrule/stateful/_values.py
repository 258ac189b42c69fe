"""What a parameter may hold, how it is described, and when one value can take the place of another.

A value is `None` (not set yet), an array, a Python number, or a pytree of those.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._describe import describe_type
from chainrule._errors import DefinitionError


def is_arraylike(leaf: Any) -> bool:
    """Whether a leaf can be an input of a JAX function."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)) or (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )


def check_value(value: Any) -> None:
    """Refuse what no transformation could carry.

    Raises:
        DefinitionError: a leaf is neither an array nor a number.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        if not is_arraylike(leaf) and type(leaf) is not object:
            where = jax.tree_util.keystr(path)
            raise DefinitionError(
                "A parameter holds an array, a number, None, or a pytree of those; found "
                f"{type(leaf).__name__}{' at ' + where if where else ''}. Keep what is not an array in "
                "`static(...)`, and put an equinox module into `layers.Layer(...)`.",
                code="bad_value",
            )


def strong(leaf: Any) -> Any:
    """An array or number with a dtype of its own.

    The dtype of a number, and of an array that JAX calls weakly typed, changes at the first write: a
    jitted function would then compile twice.
    """
    if isinstance(leaf, (bool, int, float, complex)):
        return jnp.asarray(leaf, jnp.result_type(leaf))
    if getattr(leaf, "weak_type", False):
        return jax.lax.convert_element_type(leaf, leaf.dtype)
    return leaf


def describe(value: Any) -> str:
    """Shape and dtype as `f32[3,4]`; a pytree as its type and the descriptions of its leaves."""
    if value is None:
        return "None"
    if is_arraylike(value):
        return describe_type(np.shape(value), _dtype(value))
    leaves = jax.tree.leaves(value)
    if len(leaves) == 1 and leaves[0] is value:
        return type(value).__name__
    shown = ", ".join(describe(leaf) for leaf in leaves[:4]) + (", …" if len(leaves) > 4 else "")
    return f"{type(value).__name__}({shown})"


def _dtype(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else jnp.result_type(value)


def nbytes(value: Any) -> int:
    """Bytes of all arrays in a value."""
    return sum(
        int(np.prod(np.shape(leaf), dtype=np.int64)) * _dtype(leaf).itemsize
        for leaf in jax.tree.leaves(value)
    )


def is_inexact(value: Any) -> bool:
    """Whether a value has leaves and all of them are real or complex numbers."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(jnp.issubdtype(_dtype(leaf), jnp.inexact) for leaf in leaves)


def same_type(a: Any, b: Any) -> bool:
    """Whether two values have the same tree structure, shapes and dtypes."""
    leaves_a, leaves_b = jax.tree.leaves(a), jax.tree.leaves(b)
    structure: Any = jax.tree.structure(a)
    return structure == jax.tree.structure(b) and all(
        np.shape(x) == np.shape(y) and _dtype(x) == _dtype(y)
        for x, y in zip(leaves_a, leaves_b, strict=True)
    )


def conform(old: Any, new: Any) -> tuple[bool, Any]:
    """Fit a new value into the type of the old one.

    Numbers and weakly typed arrays take the dtype of the value they replace, as they would in
    `jax.numpy` arithmetic; that keeps the second call of a jitted function from compiling again.

    Returns:
        Whether it fits, and the value to store.
    """
    if old is None or new is None:
        return True, new
    if isinstance(old, jax.Array) and isinstance(new, jax.Array):
        return _conform_leaf(old, new)
    old_leaves, new_leaves = jax.tree.leaves(old), jax.tree.leaves(new)
    tree: Any = jax.tree.structure(new)
    if tree != jax.tree.structure(old):
        return False, new
    fitted = [_conform_leaf(o, n) for o, n in zip(old_leaves, new_leaves, strict=True)]
    return all(ok for ok, _ in fitted), jax.tree.unflatten(tree, [leaf for _, leaf in fitted])


def _conform_leaf(old: Any, new: Any) -> tuple[bool, Any]:
    dtype = _dtype(old)
    if np.shape(old) != np.shape(new):
        return False, new
    is_weak = getattr(new, "weak_type", not hasattr(new, "dtype"))
    if is_weak and _category(_dtype(new)) <= _category(dtype):
        return True, jax.lax.convert_element_type(new, dtype)
    return _dtype(new) == dtype, new


def _category(dtype: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))

"""From a function of a whole tree to a function of just the selected leaves.

Selected leaves that are integer or boolean have derivative zero; they are kept out of JAX's
differentiation (which would want `float0`) and answered with zeros of their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import PathError
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime._derivatives._layout import check_shape
from chainrule.runtime.jax_recipes._boundary import is_array, seal
from chainrule.runtime.jax_recipes._programs import Selection


@dataclass(frozen=True)
class Narrowed:
    """A selection, ready for JAX's transformations.

    Attributes:
        function: `{input path: array}` → `({output path: array}, (exact outputs, all outputs))`; the
            second part is for `has_aux=True`.
        primals: the selected inputs that can vary.
        exact: the selected inputs that are integer or boolean.
    """

    function: Callable[[dict[str, Any]], tuple[dict[str, Any], tuple[dict[str, Any], Any]]]
    primals: dict[str, jax.Array]
    exact: dict[str, jax.Array]


def is_inexact(array: Any) -> bool:
    """Whether an array is real or complex floating point."""
    return jnp.issubdtype(array.dtype, jnp.inexact)


def narrow(selection: Selection, arrays: tuple[Any, ...]) -> Narrowed:
    """Fix all leaves but the selected ones. Meant to run under `jit`, once per compilation."""
    tree = selection.frame.join(arrays)
    primals, exact = _by_exactness(select(tree, selection.inputs))

    def function(values: dict[str, Any]) -> tuple[dict[str, Any], tuple[dict[str, Any], Any]]:
        outputs = selection.apply_jit(set_at_path(tree, values))
        varying, fixed = _by_exactness(select(outputs, selection.outputs))
        return varying, (fixed, seal(outputs))

    return Narrowed(function, primals, exact)


def select(tree: Any, paths: tuple[str, ...]) -> dict[str, jax.Array]:
    """The arrays at some paths; Python numbers become arrays.

    Raises:
        PathError: something that is not numeric.
    """
    return {path: _numeric(get_at_path(tree, path), path) for path in paths}


def _numeric(leaf: Any, path: str) -> jax.Array:
    if not is_array(leaf) and not isinstance(leaf, (bool, int, float, complex)):
        raise PathError(
            f"Expected an array at {path!r} to differentiate, found {type(leaf).__name__}. "
            "Leave this path out, or give it a value.",
            code="path_not_differentiable",
            path=path,
        )
    return jnp.asarray(leaf)


def _by_exactness(
    arrays: Mapping[str, jax.Array],
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    inexact = {path: array for path, array in arrays.items() if is_inexact(array)}
    return inexact, {path: array for path, array in arrays.items() if path not in inexact}


def fit(
    vector: Mapping[str, Any], like: Mapping[str, Any], *, batched: bool = False
) -> dict[str, jax.Array]:
    """Tangents or cotangents in the shapes and dtypes of what they belong to.

    Raises:
        InputError: another shape (`vector_shape_mismatch`).
    """
    return {path: _fit_one(vector[path], array, path, batched) for path, array in like.items()}


def _fit_one(value: Any, like: Any, path: str, batched: bool) -> jax.Array:
    value = jnp.asarray(value).astype(like.dtype)
    check_shape(value.shape, like.shape, path, batched=batched)
    return value


def zeros_like_all(
    arrays: Mapping[str, Any], batch_shape: tuple[int, ...] = ()
) -> dict[str, jax.Array]:
    """Zeros for every array, with a batch in front where there is one."""
    return {path: jnp.zeros(batch_shape + a.shape, a.dtype) for path, a in arrays.items()}

"""Shapes and dtypes of the outputs without computing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from chainrule.runtime.jax_recipes._boundary import is_array, seal, split, unseal


def jax_abstract_eval(apply_jit: Callable[[Any], Any], abstract_inputs: Any) -> Any:
    """Evaluate a jitted function on shapes.

    Args:
        apply_jit: a jitted function `dict -> dict`.
        abstract_inputs: inputs whose arrays are `{"shape": ..., "dtype": ...}`, as a model or nested
            mappings; other leaves keep their values and are static.

    Returns:
        The outputs, arrays again as `{"shape": ..., "dtype": ...}`.

    Example:
        >>> jax_abstract_eval(lambda d: {"y": d["x"].sum()}, {"x": {"shape": (3,), "dtype": "float32"}})
        {'y': {'shape': (), 'dtype': 'float32'}}
    """
    frame, shapes = split(abstract_arrays(abstract_inputs))
    outputs = jax.eval_shape(lambda arrays: seal(apply_jit(frame.join(arrays))), shapes)
    return describe_arrays(unseal(outputs))


def abstract_arrays(abstract_inputs: Any) -> Any:
    """Inputs with JAX's `ShapeDtypeStruct` in place of every `{"shape": ..., "dtype": ...}`."""
    dumped = hasattr(abstract_inputs, "model_dump")
    tree = abstract_inputs.model_dump() if dumped else abstract_inputs
    return jax.tree_util.tree_map(_to_shape, tree, is_leaf=_is_aval)


def describe_arrays(tree: Any) -> Any:
    """A tree with `{"shape": ..., "dtype": ...}` in place of every array."""
    return jax.tree_util.tree_map(_from_shape, tree)


def _is_aval(node: Any) -> bool:
    if isinstance(node, Mapping):
        return set(node) == {"shape", "dtype"} and isinstance(node["shape"], (tuple, list))
    return hasattr(node, "shape") and hasattr(node, "dtype")


def _to_shape(node: Any) -> Any:
    if not _is_aval(node):
        return node
    facts = node if isinstance(node, Mapping) else {"shape": node.shape, "dtype": node.dtype}
    return jax.ShapeDtypeStruct(tuple(facts["shape"]), jnp.dtype(facts["dtype"]))


def _from_shape(leaf: Any) -> Any:
    return {"shape": leaf.shape, "dtype": leaf.dtype.name} if is_array(leaf) else leaf

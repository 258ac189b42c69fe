"""Checkpoints in the ancestor's format: an npz file, one entry per parameter, named by its path in JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.stateful import BaseParam, CheckpointError, DynamicParam, Mask
from chainrule.stateful.layers import LayerParam

Filter = Callable[[Any], bool] | type


def save_params(model: Any, path: str, filter: Filter = LayerParam) -> None:
    """Write parameters to `<path>.npz`; a shared one once, under its first name.

    Args:
        model: the model.
        path: the file, `.npz` is appended.
        filter: which parameters: a kind or a predicate.
    """
    arrays: dict[str, Any] = {
        name: np.asarray(param.get()) for name, param in _chosen(model, filter)
    }
    np.savez_compressed(_file(path), **arrays)


def load_params(model: Any, path: str, filter: Filter = LayerParam) -> None:
    """Set parameters from a file, all or none.

    Args:
        model: the model.
        path: the file, `.npz` is appended.
        filter: which parameters: a kind or a predicate.

    Raises:
        KeyError: the file has no entry for a parameter.
        CheckpointError: an entry has another shape than the parameter.
    """
    chosen = dict(_chosen(model, filter))
    with np.load(_file(path)) as file:
        values = {name: file[name] for name in chosen}
    for name, param in chosen.items():
        held = param.get()
        if held is not None and jnp.shape(held) != values[name].shape:
            raise CheckpointError(
                f"{name} has shape {list(jnp.shape(held))}, but {list(values[name].shape)} in {path}.",
                path=name,
            )
    for name, param in chosen.items():
        param.set(jnp.asarray(values[name]))


def _file(path: str) -> str:
    return path if path.endswith(".npz") else f"{path}.npz"


def _chosen(model: Any, filter: Filter) -> Iterator[tuple[str, DynamicParam]]:
    mask, seen = Mask(filter), set()
    pairs = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: isinstance(x, BaseParam))
    for keys, param in pairs[0]:
        if isinstance(param, DynamicParam) and id(param) not in seen and mask.matches(param):
            seen.add(id(param))
            yield jax.tree_util.keystr(keys), param

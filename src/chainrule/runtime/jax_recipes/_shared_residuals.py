"""Residuals of another worker of the same component: their arrays travel, their structure is traced here.

What a backward function closes over has no name outside of its process, but the same program traced at the
same shapes gives the same structure. So only leaves are shared, under the program itself (its jaxpr and
constants) and the content of its inputs.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._lru_cache import LRUCache
from chainrule.runtime._content_store import content_name
from chainrule.runtime._derivatives._residuals import ResidualCache
from chainrule.runtime.jax_recipes._programs import Selection

Forward = Callable[[Selection, Any], Any]


class _Traced(NamedTuple):
    """A program at some shapes: what it is called between processes, and how its residuals are built."""

    name: str
    template: Any
    structure: Any
    types: tuple[tuple[tuple[int, ...], Any], ...]


_traced: LRUCache[Any, _Traced] = LRUCache(256)


def share(
    cache: ResidualCache, forward: Forward, program: Selection, arrays: Any, pull: Any
) -> None:
    """Let other processes find the residuals of a forward pass."""
    if cache.shared is None:
        return
    name = content_name(_trace(forward, program, arrays).name, list(arrays))
    if name is None:
        return
    try:
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(pull)]
    except TypeError:  # random keys have no bytes of their own
        return
    cache.shared.write(name, pickle.dumps(leaves, protocol=5))


def find_shared(
    cache: ResidualCache, forward: Forward, program: Selection, arrays: Any
) -> tuple[Any, Any] | None:
    """What another process left for these inputs: `(template, backward function)`."""
    if cache.shared is None:
        return None
    traced = _trace(forward, program, arrays)
    name = content_name(traced.name, list(arrays))
    content = None if name is None else cache.shared.read(name)
    if content is None:
        return None
    leaves = [jnp.asarray(leaf) for leaf in pickle.loads(content)]
    if tuple((leaf.shape, leaf.dtype) for leaf in leaves) != traced.types:
        return None
    return traced.template, jax.tree_util.tree_unflatten(traced.structure, leaves)


def _trace(forward: Forward, program: Selection, arrays: Any) -> _Traced:
    key = (program, tuple((np.shape(array), array.dtype) for array in arrays))
    found = _traced.get(key)
    if found is None:
        found = _trace_now(forward, program, arrays)
        _traced.put(key, found)
    return found


def _trace_now(forward: Forward, program: Selection, arrays: Any) -> _Traced:
    closed = jax.make_jaxpr(forward, static_argnums=0)(program, arrays)
    constants = content_name([np.asarray(constant) for constant in closed.consts])
    text = f"{jax.__version__} {constants} {closed.jaxpr}"
    _, template, pull = jax.eval_shape(lambda a: forward(program, a), arrays)
    leaves, structure = jax.tree_util.tree_flatten(pull)
    return _Traced(
        hashlib.blake2b(text.encode(), digest_size=20).hexdigest(),
        template.value,
        structure,
        tuple((leaf.shape, leaf.dtype) for leaf in leaves),
    )

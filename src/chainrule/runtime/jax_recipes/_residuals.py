"""`jax_apply`, and keeping its backward function for the VJP that follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime._derivatives._residuals import (
    ResidualCache,
    content_digest,
    current_residual_cache,
    own,
)
from chainrule.runtime.jax_recipes._boundary import Static, is_array, seal, split, unseal
from chainrule.runtime.jax_recipes._narrowing import fit, is_inexact, zeros_like_all
from chainrule.runtime.jax_recipes._programs import Selection
from chainrule.runtime.jax_recipes._shared_residuals import find_shared, share


def jax_apply(apply_jit: Callable[[Any], Any], inputs: Any) -> Any:
    """Call a jitted function `dict -> dict` with an endpoint's inputs.

    With `set_jax_vjp_cache_size` on, the backward function is kept for a `jax_vjp` of the same inputs.

    Args:
        apply_jit: the function; `equinox.filter_jit` where some leaves are not arrays.
        inputs: a model or nested mappings.

    Returns:
        What `apply_jit` returns.
    """
    frame, arrays = split(inputs)
    cache = current_residual_cache()
    program = Selection(apply_jit, frame)
    if cache.max_entries and _are_known(arrays) and _keeps_residuals(cache, program, arrays):
        return _apply_and_keep(cache, program, arrays)
    return apply_jit(frame.join(arrays))


def _apply_and_keep(cache: ResidualCache, program: Selection, arrays: tuple[Any, ...]) -> Any:
    owned = own(arrays)
    outputs, template, pull = _forward(program, owned)
    nbytes = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(pull))
    cache.keep(program, owned, (template.value, pull), nbytes)
    share(cache, _forward, program, owned, pull)
    return unseal(outputs)


def reuse_residuals(
    selection: Selection, arrays: tuple[Any, ...], cotangents: dict[str, Any], batched: bool
) -> dict[str, jax.Array] | None:
    """The VJP from kept residuals; `None` when there are none for these inputs."""
    cache = current_residual_cache()
    if not cache.max_entries or not _are_known(arrays) or not _all_arrays(selection, arrays):
        return None
    program = Selection(selection.apply_jit, selection.frame)
    found = cache.find(program, arrays) or find_shared(cache, _forward, program, arrays)
    if found is None:
        return None
    template, pull = found
    return _backward(selection, template, batched, arrays, pull, cotangents)


def _are_known(arrays: tuple[Any, ...]) -> bool:
    """Whether there are numbers to know inputs by: not while a program is traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def _all_arrays(selection: Selection, arrays: tuple[Any, ...]) -> bool:
    # A Python number at a selected path is structure to `jax_apply`: no residual leads back to it.
    tree = selection.frame.join(arrays)
    return all(is_array(get_at_path(tree, path)) for path in selection.inputs)


def _only_inexact(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda a: a if is_array(a) and is_inexact(a) else None, tree)


@partial(jax.jit, static_argnums=0)
def _forward(program: Selection, arrays: Any) -> Any:
    """All outputs, the shapes of those that vary, and the function back to all inputs that vary."""
    leaves = tuple(map(jnp.asarray, arrays))
    varying = tuple(leaf if is_inexact(leaf) else None for leaf in leaves)

    def function(moved: tuple[Any, ...]) -> tuple[Any, Any]:
        merged = tuple(a if m is None else m for a, m in zip(leaves, moved, strict=True))
        outputs = program.apply_jit(program.frame.join(merged))
        return _only_inexact(outputs), seal(outputs)

    primal, pull, outputs = jax.vjp(function, varying, has_aux=True)
    shapes, structure = jax.tree_util.tree_flatten(primal)
    template = Static((structure, tuple((a.shape, a.dtype) for a in shapes)))
    return outputs, template, pull


@partial(jax.jit, static_argnums=(0, 1, 2))
def _backward(
    selection: Selection,
    template: tuple[Any, Any],
    batched: bool,
    arrays: Any,
    pull: Any,
    cotangents: dict[str, Any],
) -> dict[str, jax.Array]:
    zeros = _zeros(template)
    leaves = tuple(map(jnp.asarray, arrays))
    inputs = selection.frame.join(leaves)
    exact = {p: a for p in selection.inputs if not is_inexact(a := get_at_path(inputs, p))}
    like = {p: a for p in selection.outputs if (a := get_at_path(zeros, p)) is not None}

    def pull_back(cotangent: dict[str, Any]) -> dict[str, jax.Array]:
        (gradient,) = pull(set_at_path(zeros, cotangent))
        tree = selection.frame.join(gradient)
        found = {path: get_at_path(tree, path) for path in selection.inputs if path not in exact}
        return found | zeros_like_all(exact)

    vector = fit(cotangents, like, batched=batched)
    return jax.vmap(pull_back)(vector) if batched else pull_back(vector)


def _keeps_residuals(cache: ResidualCache, program: Selection, arrays: tuple[Any, ...]) -> bool:
    key = (program, tuple((np.shape(a), a.dtype) for a in arrays))
    verdict = cache.verdict(key)
    if verdict is None:
        verdict, reason = _judge(cache, program, arrays)
        cache.decide(key, verdict, reason)
    return verdict


def _judge(cache: ResidualCache, program: Selection, arrays: tuple[Any, ...]) -> tuple[bool, str]:
    try:
        jax.eval_shape(partial(_there_and_back, program), arrays)
    except Exception as error:
        # The program runs but has no reverse derivative (say, a while loop): it must go on running.
        return False, f"the program has no reverse-mode derivative ({type(error).__name__})"
    if not cache.only_if_it_pays:
        return True, "asked for"
    plain_s = _seconds(lambda: program.apply_jit(program.frame.join(arrays)))
    keeping_s = _seconds(lambda: _forward(program, own(arrays)))
    if cache.shared is not None:
        _, _, pull = _forward(program, own(arrays))
        keeping_s += _seconds(lambda: share(cache, _forward, program, arrays, pull))
    key_s = _seconds(lambda: content_digest(arrays))
    gain_s = plain_s - (keeping_s - plain_s) - 2 * key_s
    reason = (
        f"the forward pass takes {plain_s * 1e3:.3g} ms, with residuals {keeping_s * 1e3:.3g} ms, "
        f"the key {key_s * 1e3:.3g} ms"
    )
    return gain_s > 0.1 * plain_s, reason


def _there_and_back(program: Selection, arrays: Any) -> Any:
    _, template, pull = _forward(program, arrays)
    return pull(_zeros(template.value))


def _zeros(template: tuple[Any, Any]) -> Any:
    structure, shapes = template
    return jax.tree_util.tree_unflatten(structure, [jnp.zeros(*shape) for shape in shapes])


def _seconds(call: Callable[[], Any]) -> float:
    jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start

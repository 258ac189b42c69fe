"""Keeping the backward function of `jax_apply` for the `jax_vjp` that follows.

`jax.vjp` gives the outputs and a function `pull`, a pytree whose leaves are the residuals. The forward pass
runs once, compiled, and returns `pull`; the backward pass takes it as an argument. Both are compiled once
per program and shapes.

Between processes only the leaves of `pull` travel, in the folder of the store. What a backward function
closes over has no name outside of its process, but the same program traced at the same shapes gives the
same structure. So leaves are shared under the program itself (its jaxpr and constants) and the content of
its inputs, and put into a structure that is traced here.
"""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._content_store import content_name
from chainrule._partition import Static, is_array, seal
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime._residuals import ResidualStore, jax_residuals, own
from chainrule.runtime._runs import count_reuse
from chainrule.runtime.jax_recipes._programs import Selection, fit, is_inexact, zeros_like_all

logger = logging.getLogger(__name__)

Types = tuple[tuple[tuple[int, ...], Any], ...]
"""The shape and dtype of each array."""


def apply_and_keep(program: Selection, arrays: tuple[Any, ...]) -> Any | None:
    """The outputs, sealed, of a forward pass whose backward function is kept; `None` where it is not."""
    store = jax_residuals()
    if (
        not store.max_entries
        or not _are_known(arrays)
        or not _is_kept(program, _types(arrays), store.only_if_it_pays)
    ):
        return None
    owned = own(arrays)
    outputs, shapes, pull = _forward(program, owned)
    nbytes = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(pull))
    store.keep(program, owned, (shapes.value, pull), nbytes)
    _share(store, program, owned, pull)
    return outputs


def vjp_from_residuals(
    selection: Selection, arrays: tuple[Any, ...], cotangents: dict[str, Any], batched: bool
) -> dict[str, jax.Array] | None:
    """The VJP from kept residuals; `None` when there are none for these inputs."""
    store = jax_residuals()
    if not store.max_entries or not _are_known(arrays) or not _all_arrays(selection, arrays):
        return None
    program = Selection(selection.apply_jit, selection.template)
    found = store.find(program, arrays) or _find_shared(store, program, arrays)
    count_reuse("residuals", found=found is not None)
    if found is None:
        return None
    shapes, pull = found
    return _backward(selection, shapes, batched, arrays, pull, cotangents)


def _are_known(arrays: tuple[Any, ...]) -> bool:
    """Whether there are numbers to know inputs by: not while a program is traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def _all_arrays(selection: Selection, arrays: tuple[Any, ...]) -> bool:
    # A Python number at a selected path is structure to `jax_apply`: no residual leads back to it.
    tree = selection.template.join(arrays)
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
        outputs = program.apply_jit(program.template.join(merged))
        return _only_inexact(outputs), seal(outputs)

    primal, pull, outputs = jax.vjp(function, varying, has_aux=True)
    results, structure = jax.tree_util.tree_flatten(primal)
    shapes = Static((structure, tuple((a.shape, a.dtype) for a in results)))
    return outputs, shapes, pull


@partial(jax.jit, static_argnums=(0, 1, 2))
def _backward(
    selection: Selection,
    shapes: tuple[Any, Any],
    batched: bool,
    arrays: Any,
    pull: Any,
    cotangents: dict[str, Any],
) -> dict[str, jax.Array]:
    """Pull cotangents back to the selected inputs.

    `pull` goes from all outputs that vary to all inputs that vary: outputs that are not selected have the
    cotangent zero, and of the gradient only the selected paths are taken.
    """
    # `pull` is linear, so a zero cotangent for an output that is not selected adds nothing to any gradient.
    zeros = _zeros(shapes)
    leaves = tuple(map(jnp.asarray, arrays))
    inputs = selection.template.join(leaves)
    exact = {p: a for p in selection.inputs if not is_inexact(a := get_at_path(inputs, p))}
    like = {p: a for p in selection.outputs if (a := get_at_path(zeros, p)) is not None}

    def pull_back(cotangent: dict[str, Any]) -> dict[str, jax.Array]:
        (gradient,) = pull(set_at_path(zeros, cotangent))
        tree = selection.template.join(gradient)
        found = {path: get_at_path(tree, path) for path in selection.inputs if path not in exact}
        return found | zeros_like_all(exact)

    vector = fit(cotangents, like, batched=batched)
    return jax.vmap(pull_back)(vector) if batched else pull_back(vector)


def _types(arrays: tuple[Any, ...]) -> Types:
    return tuple((np.shape(array), array.dtype) for array in arrays)


def _shapes(types: Types) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(*each) for each in types)


@lru_cache(maxsize=1024)
def _is_kept(program: Selection, types: Types, only_if_it_pays: bool) -> bool:
    """Whether residuals of a program are kept; decided once, and logged."""
    verdict, reason = _judge(program, _shapes(types), only_if_it_pays)
    logger.info("VJP residuals are %s: %s", "kept" if verdict else "not kept", reason)
    return verdict


def _judge(program: Selection, inputs: tuple[Any, ...], only_if_it_pays: bool) -> tuple[bool, str]:
    try:
        residuals, _ = jax.eval_shape(partial(_there_and_back, program), inputs)
    except Exception as error:
        # The program runs but has no reverse derivative (say, a while loop): it must go on running.
        return False, f"the program has no reverse-mode derivative ({type(error).__name__})"
    if not only_if_it_pays:
        return True, "asked for"
    held, known = (sum(leaf.size for leaf in leaves) for leaves in (residuals, inputs))
    work = _work(program, inputs)
    reason = (
        f"the forward pass has {work.operations:.3g} operations, the residuals {held:.3g} numbers, the "
        f"inputs {known:.3g}"
    )
    saved = _ARITHMETIC * work.arithmetic + _TRANSCENDENTAL * work.transcendental
    saved += _CONTRACTION * work.contraction + _HOST_CALL * work.calls
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in residuals)
    return saved > held * (1.0 if nbytes > _LARGE_BYTES else _AT_HAND) + _KNOWN * known, reason


# What a VJP after `apply` saves is one forward pass. It costs the residuals, which are written and read
# again, and the inputs, which are copied when they are kept and compared when they are found. All of it is
# relative to one number of residuals in fresh memory, about 5 ns, as measured for float32 on two processors.
# Counted, not timed: timing would run the author's program again, which may take hours.
_ARITHMETIC = 0.02
_TRANSCENDENTAL = 0.4
_CONTRACTION = 0.004
_HOST_CALL = 1e4
_KNOWN = 0.2
# Up to this size the allocator has memory at hand that was used before.
_LARGE_BYTES = 1 << 20
_AT_HAND = 0.1


def _work(program: Selection, arrays: tuple[Any, ...]) -> Any:
    from chainrule.elimination.internal import work_of_program

    def function(arrays: tuple[Any, ...]) -> Any:
        return seal(program.apply_jit(program.template.join(arrays)))

    return work_of_program(jax.make_jaxpr(function)(arrays))


def _there_and_back(program: Selection, arrays: Any) -> tuple[list[Any], Any]:
    """The residuals, and the gradient for cotangents of zero."""
    _, shapes, pull = _forward(program, arrays)
    return jax.tree_util.tree_leaves(pull), pull(_zeros(shapes.value))


def _zeros(shapes: tuple[Any, Any]) -> Any:
    structure, types = shapes
    return jax.tree_util.tree_unflatten(structure, [jnp.zeros(*each) for each in types])


# --- between processes ---------------------------------------------------------------------------


class _ResidualLayout(NamedTuple):
    """A program at some shapes: what it is called between processes, and how its residuals are built."""

    name: str
    shapes: Any
    structure: Any
    types: Types


def _share(store: ResidualStore, program: Selection, arrays: Any, pull: Any) -> None:
    """Let other processes find the residuals of a forward pass."""
    if store.shared is None:
        return
    try:
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(pull)]
    except TypeError:  # random keys have no bytes of their own
        return
    store.share(content_name(_trace(program, _types(arrays)).name, list(arrays)), leaves)


def _find_shared(store: ResidualStore, program: Selection, arrays: Any) -> tuple[Any, Any] | None:
    """What another process left for these inputs: the shapes of the outputs and the backward function."""
    if store.shared is None:
        return None
    traced = _trace(program, _types(arrays))
    found = store.find_shared(content_name(traced.name, list(arrays)))
    if found is None:
        return None
    leaves = [jnp.asarray(leaf) for leaf in found]
    # The name has the program, its constants and the version of JAX in it; this is for a file that was
    # damaged.
    if tuple((leaf.shape, leaf.dtype) for leaf in leaves) != traced.types:
        return None
    return traced.shapes, jax.tree_util.tree_unflatten(traced.structure, leaves)


@lru_cache(maxsize=256)
def _trace(program: Selection, types: Types) -> _ResidualLayout:
    arrays = _shapes(types)
    closed = jax.make_jaxpr(_forward, static_argnums=0)(program, arrays)
    constants = content_name([np.asarray(constant) for constant in closed.consts])
    text = f"{jax.__version__} {constants} {closed.jaxpr}"
    _, shapes, pull = jax.eval_shape(lambda a: _forward(program, a), arrays)
    leaves, structure = jax.tree_util.tree_flatten(pull)
    return _ResidualLayout(
        hashlib.blake2b(text.encode(), digest_size=20).hexdigest(),
        shapes.value,
        structure,
        tuple((leaf.shape, leaf.dtype) for leaf in leaves),
    )

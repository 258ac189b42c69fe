"""Branches around rewritten programs: one runs, all hand out the same extras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from chainrule._jaxpr._extras import Extra, Staged
from chainrule._jaxpr._programs import subprograms

if TYPE_CHECKING:
    from chainrule._jaxpr._rewrite import Rewriter


def bind_cond(
    rewriter: Rewriter, eqn: JaxprEqn, operands: list[Any], loops: tuple[Any, ...]
) -> tuple[list[Any], list[Extra]]:
    """Every branch hands out the extras of all, its own filled in and flagged as taken."""
    branches = [rewriter.stage(sub.program, loops) for sub in subprograms(eqn)]
    slots, places = _share_slots([staged.extras for staged in branches])
    functions = [_filling(staged, slots, own) for staged, own in zip(branches, places, strict=True)]
    outputs, extras = jax.lax.switch(operands[0], functions, *operands[1:])
    in_all = [all(n in own for own in places) for n in range(len(slots))]
    return outputs, [
        replace(extra, taken=None) if always and slot.taken is None else extra
        for extra, slot, always in zip(extras, slots, in_all, strict=True)
    ]


def _filling(staged: Staged, slots: list[Extra], own: dict[int, int]) -> Callable[..., Any]:
    def branch(*inputs: Any) -> tuple[list[Any], list[Extra]]:
        outputs, extras = staged.run(inputs)
        return outputs, [
            _present(extras[own[n]]) if n in own else _absent(slot) for n, slot in enumerate(slots)
        ]

    return branch


def _share_slots(branches: list[list[Extra]]) -> tuple[list[Extra], list[dict[int, int]]]:
    """Equal extras of different branches share a slot: at most one of them exists.

    Returns the slots, and per branch the positions of its extras by slot.
    """
    slots: list[Extra] = []
    places: list[dict[int, int]] = []
    for extras in branches:
        own: dict[int, int] = {}
        for position, extra in enumerate(extras):
            shared = (n for n, slot in enumerate(slots) if n not in own and _alike(slot, extra))
            slot = next(shared, len(slots))
            if slot == len(slots):
                slots.append(extra)
            own[slot] = position
        places.append(own)
    return slots, places


def _alike(one: Extra, other: Extra) -> bool:
    def form(extra: Extra) -> Any:
        leaves, tree = jax.tree.flatten(extra)
        return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]

    return form(one) == form(other)


def _present(extra: Extra) -> Extra:
    return replace(extra, taken=jnp.full(extra.loop_shape, True)) if extra.taken is None else extra


def _absent(like: Extra) -> Extra:
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return replace(blank, taken=jnp.full(like.loop_shape, False))

"""The compiled programs behind `jit`: one `jax.jit` of a flat function per structure.

A flat function takes the values of all slots as one list (or two, when some are donated), then the user's
positional arguments, and returns `(result, {slot: new value}, notes)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, reshard

from chainrule.stateful._call import execute, name_of
from chainrule.stateful._frames import local
from chainrule.stateful._masks import resolve_mask
from chainrule.stateful._plan import Plan
from chainrule.stateful._statics import Static

__all__ = ["Notes", "Program", "as_tuple"]


class Notes(Static):
    """Static facts about a run: `(static writes, whether live objects are returned)`."""

    __slots__ = ()


jax.tree_util.register_static(Notes)


class Program:
    """One `jax.jit` for all keyword arguments of equal structure.

    Args:
        owner: the transformation, for the function and its options.
        plan: any plan with that structure.
        arity: number of positional arguments.
        donated: slots whose buffers the program may reuse; it always returns new values for them.
    """

    __slots__ = ("call", "donated", "kept")

    def __init__(self, owner: Any, plan: Plan, arity: int, donated: Sequence[int] = ()) -> None:
        self.donated = tuple(donated)
        self.kept = tuple(slot for slot in range(len(plan.paths)) if slot not in set(donated))
        options = _flat_options(owner.options, plan, arity, self.donated)
        self.call = jax.jit(_flat_function(owner, self.donated, self.kept), **options)

    def arrange(self, values: list[Any]) -> tuple[list[Any], ...]:
        """The values as the program takes them: kept ones, then donated ones if any."""
        if not self.donated:
            return (values,)
        kept = [values[slot] for slot in self.kept]
        donated = [values[slot] for slot in self.donated]
        leaves = jax.tree.leaves(values)
        if len(set(map(id, leaves))) < len(leaves):
            donated = _without_repetition(kept, donated)
        return kept, donated


def _without_repetition(kept: list[Any], donated: list[Any]) -> list[Any]:
    """A buffer can be given away once, and only if nobody else needs it: the others get copies."""
    seen = set(map(id, jax.tree.leaves(kept)))

    def own(leaf: Any) -> Any:
        is_taken = id(leaf) in seen
        seen.add(id(leaf))
        return jnp.copy(leaf) if is_taken else leaf

    return jax.tree.map(own, donated)


def _flat_function(
    owner: Any, donated: tuple[int, ...], kept: tuple[int, ...]
) -> Callable[..., Any]:
    def flat(values: list[Any], *args: Any) -> tuple[Any, dict[int, Any], Notes | None]:
        plan = owner.plan(local.call)
        if donated:
            given, args = args[0], args[1:]
            by_slot = dict(zip((*kept, *donated), (*values, *given), strict=True))
            values = [by_slot[slot] for slot in range(len(by_slot))]
        result, frame, returns_live = execute(plan, owner.fun, values, args, is_barrier=True)
        new = frame.results()
        writes = {slot: new[slot] for slot in {*plan.slots_of(frame.written), *donated}}
        statics = plan.static_writes(frame.statics)
        notes = Notes((statics, returns_live)) if statics or returns_live else None
        return result, _constrain(writes, owner.options["kwargs_shardings"], plan), notes

    flat.__name__ = flat.__qualname__ = name_of(owner.fun)
    return flat


def _constrain(writes: dict[int, Any], mask: Any, plan: Plan) -> dict[int, Any]:
    """A parameter with a sharding keeps it."""
    if mask is None:
        return writes
    shardings = resolve_mask(mask, plan, None)
    return {slot: _place(value, shardings[slot]) for slot, value in writes.items()}


def _place(value: Any, sharding: Any) -> Any:
    if sharding is None:
        return value
    if AxisType.Explicit in sharding.mesh.axis_types:
        return reshard(value, sharding)
    return jax.lax.with_sharding_constraint(value, sharding)


def _flat_options(
    options: Mapping[str, Any], plan: Plan, arity: int, donated: tuple[int, ...]
) -> dict[str, Any]:
    """The options of `jax.jit` for the flat function, whose first one or two arguments are ours."""
    offset = 2 if donated else 1

    def shifted(argnums: Any) -> tuple[int, ...]:
        named = [num + arity if num < 0 else num for num in as_tuple(argnums)]
        # An argument that is not passed, or passed by its name, is none of the flat function's.
        return tuple(offset + num for num in named if 0 <= num < arity)

    flat: dict[str, Any] = {
        "static_argnums": shifted(options["static_argnums"]),
        "donate_argnums": (*((1,) if donated else ()), *shifted(options["donate_argnums"])),
        "keep_unused": options["keep_unused"],
        "inline": options["inline"],
        "compiler_options": options["compiler_options"],
    }
    ins, outs, mask = (options[k] for k in ("in_shardings", "out_shardings", "kwargs_shardings"))
    if ins is not None or mask is not None:
        per_slot = resolve_mask(mask, plan, None)
        kept = [sharding for slot, sharding in enumerate(per_slot) if slot not in donated]
        given = [[per_slot[slot] for slot in donated]] if donated else []
        user = ins if isinstance(ins, (tuple, list)) else (ins,) * arity
        flat["in_shardings"] = (kept, *given, *user)
    if outs is not None:
        flat["out_shardings"] = (outs, None, None)
    return flat


def as_tuple(x: Any) -> tuple[Any, ...]:
    if x is None:
        return ()
    return (x,) if isinstance(x, (int, str)) else tuple(x)

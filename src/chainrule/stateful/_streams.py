"""Random generators where one function runs many times side by side (`vmap`, `shard_map`).

A generator that is not itself mapped has one state for all lanes. It is forked: every lane draws from a key
folded with the lane's index, and the state after the call is an independent one, whatever the lanes drew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from chainrule.stateful._call import Call
from chainrule.stateful._random import RKGState

__all__ = ["Fork"]


class Fork:
    """The generators of a call that are forked.

    Args:
        call: the call.
        is_shared: per slot, whether its value is the same for all lanes.
    """

    def __init__(self, call: Call, is_shared: Sequence[bool]) -> None:
        self._call = call
        self._after: dict[int, Any] = {}
        self.values = list(call.values)
        for slot, param in enumerate(call.plan.params):
            if isinstance(param, RKGState) and is_shared[slot]:
                after, lanes = jax.random.split(jax.random.wrap_key_data(call.values[slot]))
                self._after[slot] = jax.random.key_data(after)
                self.values[slot] = jax.random.key_data(lanes)

    def lanes(self, pure: Callable[..., Any], lane_index: Callable[[], Any]) -> Callable[..., Any]:
        """The pure function of a call with the lane's own generators."""

        def run(values: Sequence[Any], *args: Any) -> tuple[Any, list[Any]]:
            own = list(values)
            for slot in self._after:
                key = jax.random.fold_in(jax.random.wrap_key_data(values[slot]), lane_index())
                own[slot] = jax.random.key_data(key)
            result, new = pure(own, *args)
            for slot in self._after:
                new[slot] = values[slot]
            return result, new

        run.__name__ = run.__qualname__ = pure.__name__
        return run

    def finish(self, result: Any, values: Sequence[Any]) -> Any:
        """Commit as the call does, with the generators' own state after the call."""
        return self._call.finish(result, [self._after.get(i, v) for i, v in enumerate(values)])

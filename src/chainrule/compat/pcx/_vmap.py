"""`vmap` with the ancestor's discipline of random keys.

The global generator is split into one key per lane, lane i gets the i-th, and afterwards its state is what
lane 0 left. (Natively, lanes fold their index into one key and the state afterwards depends on none of them.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax

from chainrule import stateful
from chainrule.stateful import RKG

_LANES = "pcx_lanes"


def vmap_with_lane_keys(
    fn: Callable[..., Any],
    *,
    kwargs_mask: Any,
    in_axes: Any,
    out_axes: Any,
    axis_name: Hashable | None,
) -> Callable[..., Any]:
    """The vectorised function; arguments as in `chainrule.stateful.vmap`."""
    lanes = _LANES if axis_name is None else axis_name

    @functools.wraps(fn)
    def lane(key: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = RKG.key.get()
        RKG.key.set(_own_key(key, lanes))
        result = fn(*args, **kwargs)
        left = RKG.key.get()
        RKG.key.set(given)
        return result, left

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        mapped = stateful.vmap(
            lane,
            kwargs_mask=kwargs_mask,
            in_axes=(None, *axes),
            out_axes=(out_axes, 0),
            axis_name=lanes,
        )
        result, left = mapped(RKG.key.get(), *args, **kwargs)
        RKG.key.set(left[0])
        return result

    return call


def _own_key(key: Any, lanes: Hashable) -> Any:
    """Row i + 1 of the key split into (number of lanes) + 1."""
    count = jax.lax.psum(1, lanes)
    rows = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key), count + 1))
    return rows[jax.lax.axis_index(lanes) + 1]

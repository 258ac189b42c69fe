"""One function many times side by side: `vmap` over an axis, `shard_map` over devices.

Every parameter is mapped, or shared by all lanes, as the mask says. A random generator that is not itself
mapped has one state for all lanes. It is forked: every lane draws from a key folded with the lane's index,
and the state after the call is an independent one and does not depend on what the lanes drew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from chainrule.stateful._call import Call, Retracing, decorator
from chainrule.stateful._errors import TrackingError
from chainrule.stateful._masks import resolve_mask
from chainrule.stateful._random import RKGState


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
        for slot, param in enumerate(call.inventory.params):
            if isinstance(param, RKGState) and param.is_forked and is_shared[slot]:
                # Both halves are independent of each other: what the lanes draw, and how much of it, has no
                # influence on the state after the call. Lane i begins at fold_in(lanes, i), which differs for
                # every i.
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


_LANES = "chainrule_lanes"


def _vmap(
    call: Call,
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    kwargs_mask: Any,
    in_axes: Any,
    out_axes: Any,
    axis_name: Hashable | None,
    **jax_options: Any,
) -> Any:
    # Lanes are told apart by their index, so the axis always has a name.
    axis = _LANES if axis_name is None else axis_name
    axes = resolve_mask(kwargs_mask, call.inventory, None)
    fork = Fork(call, [each is None for each in axes])
    per_argument = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)

    def lanes() -> Callable[..., Any]:
        return fork.lanes(call.pure(fun), lambda: jax.lax.axis_index(axis))

    def mapped(function: Callable[..., Any], out_axes: Any) -> Callable[..., Any]:
        return jax.vmap(
            function,
            in_axes=(axes, *per_argument),
            out_axes=out_axes,
            axis_name=axis,
            **jax_options,
        )

    def comes_back(slot: int, axis: int | None) -> bool:
        """Whether the function can return one parameter, and no result, with this axis."""
        inner = lanes()
        only = mapped(lambda *a: inner(*a)[1][slot], axis)
        try:
            jax.eval_shape(only, fork.values, *args)
        except ValueError:
            return False
        return True

    try:
        of_params = axes[: len(call.inventory.params)]
        result, values = mapped(lanes(), (out_axes, of_params))(fork.values, *args)
    except ValueError as error:
        shared = [slot for slot in sorted(call.written) if axes[slot] is None]
        divided = [slot for slot in shared if comes_back(slot, 0) and not comes_back(slot, None)]
        if divided:
            raise _differs_between_lanes([call.inventory.paths[s] for s in divided]) from error
        raise
    return fork.finish(result, values)


def _differs_between_lanes(paths: list[str]) -> TrackingError:
    return TrackingError(
        f"Under vmap, {', '.join(f'`{path}`' for path in paths)} is shared by all lanes but was set to a "
        "value that differs between them. Map it (`kwargs_mask`), or reduce the value over the axis first "
        "(`jax.lax.pmean(value, axis_name)`).",
        code="batched_write",
        path=paths[0],
    )


def vmap(
    fun: Callable[..., Any] | None = None,
    in_axes: int | Sequence[Any] | None = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    *,
    kwargs_mask: Any = None,
) -> Any:
    """Vectorise a function; parameters in keyword arguments are mapped or shared, and tracked.

    Args:
        fun: the function. Without it, a decorator is returned.
        in_axes: as in `jax.vmap`, for positional arguments.
        out_axes: as in `jax.vmap`.
        axis_name: as in `jax.vmap`.
        axis_size: as in `jax.vmap`.
        spmd_axis_name: as in `jax.vmap`.
        kwargs_mask: the axis of every parameter, `None` for one value shared by all lanes (the default).
            A mask with `.to((None, 0))`, or a dictionary per keyword. What is written to a shared
            parameter must be the same in all lanes, for example a `jax.lax.pmean`.

    Random generators that are not mapped give every lane its own keys.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, vmap
        >>> total = Param(jnp.zeros(3))
        >>> @vmap(kwargs_mask={"total": 0})
        ... def add(x, *, total):
        ...     total += x
        >>> add(jnp.arange(3.0), total=total)
        >>> total.get().tolist()
        [0.0, 1.0, 2.0]
    """
    return decorator(
        Retracing, fun, name="vmap", run=_vmap, kwargs_mask=kwargs_mask, in_axes=in_axes, out_axes=out_axes,
        axis_name=axis_name, axis_size=axis_size, spmd_axis_name=spmd_axis_name,
    )  # fmt: skip


def _shard_map(
    call: Call,
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    mesh: Mesh,
    in_specs: Any,
    out_specs: Any,
    kwargs_mask: Any,
    check_vma: bool,
) -> Any:
    replicated = PartitionSpec()
    specs = resolve_mask(kwargs_mask, call.inventory, replicated)
    fork = Fork(call, [spec == replicated for spec in specs])
    mapped = jax.shard_map(
        fork.lanes(call.pure(fun), lambda: jax.lax.axis_index(mesh.axis_names)),
        mesh=mesh,
        in_specs=(specs, *(in_specs if isinstance(in_specs, (tuple, list)) else (in_specs,))),
        out_specs=(out_specs, specs[: len(call.inventory.params)]),
        check_vma=check_vma,
    )
    result, values = mapped(fork.values, *args)
    return fork.finish(result, values)


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    mesh: Mesh,
    in_specs: Any,
    out_specs: Any,
    kwargs_mask: Any = None,
    check_vma: bool = True,
) -> Any:
    """Run a function on every shard of its arguments.

    Args:
        f: the function. Without it, a decorator is returned.
        mesh: as in `jax.shard_map`.
        in_specs: as in `jax.shard_map`, for positional arguments.
        out_specs: as in `jax.shard_map`.
        kwargs_mask: a mask whose values are `PartitionSpec`s: how parameters are split. By default they
            are replicated, and what is written to them must be equal on all shards (`jax.lax.pmean`).
        check_vma: as in `jax.shard_map`.

    Random generators that are replicated give every shard its own keys.
    """
    return decorator(
        Retracing, f, name="shard_map", run=_shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs,
        kwargs_mask=kwargs_mask, check_vma=check_vma,
    )  # fmt: skip

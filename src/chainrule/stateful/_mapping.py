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

from chainrule.stateful._call import Call, Transformation, decorator
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


class Vmap(Transformation):
    """A vectorised function; see `vmap`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        kwargs_mask: Any = None,
        in_axes: Any = 0,
        out_axes: Any = 0,
        axis_name: Hashable | None = None,
        **jax_options: Any,
    ) -> None:
        super().__init__(
            fun,
            kwargs_mask=kwargs_mask,
            in_axes=in_axes,
            out_axes=out_axes,
            axis_name=axis_name,
            **jax_options,
        )
        self._mask = kwargs_mask
        self._in_axes = in_axes
        self._out_axes = out_axes
        # Lanes are told apart by their index, so the axis always has a name.
        self._axis_name = _LANES if axis_name is None else axis_name
        self._jax_options = jax_options

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(kwargs)
        axes = resolve_mask(self._mask, call.inventory, None)
        fork = Fork(call, [axis is None for axis in axes])
        lanes = fork.lanes(call.pure(self._fun), self._lane_index)
        try:
            result, values = self._map(lanes, args, axes, axes[: len(call.inventory.params)])(
                fork.values, *args
            )
        except ValueError as error:
            self._explain(error, call, fork, axes, args)
            raise
        return fork.finish(result, values)

    def _lane_index(self) -> Any:
        return jax.lax.axis_index(self._axis_name)

    def _map(
        self, function: Callable[..., Any], args: tuple[Any, ...], axes: Any, out_axes: Any
    ) -> Callable[..., Any]:
        in_axes = self._in_axes
        per_argument = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        return jax.vmap(
            function,
            in_axes=(axes, *per_argument),
            out_axes=(self._out_axes, out_axes),
            axis_name=self._axis_name,
            **self._jax_options,
        )

    def _explain(
        self, error: Exception, call: Call, fork: Fork, axes: list[Any], args: tuple[Any, ...]
    ) -> None:
        """Name the shared parameters that got a different value per lane, if that is what failed.

        Found by experiment: return only one parameter, once as mapped and once as shared.
        """

        def works(slot: int, axis: int | None) -> bool:
            lanes = fork.lanes(call.pure(self._fun), self._lane_index)
            only = self._map(lambda *a: (None, lanes(*a)[1][slot]), args, axes, axis)
            try:
                jax.eval_shape(only, fork.values, *args)
            except ValueError:
                return False
            return True

        shared = [slot for slot in sorted(call.written) if axes[slot] is None]
        culprits = [slot for slot in shared if works(slot, 0) and not works(slot, None)]
        if culprits:
            paths = ", ".join(f"`{call.inventory.paths[slot]}`" for slot in culprits)
            raise TrackingError(
                f"Under vmap, {paths} is shared by all lanes but was set to a value that differs "
                "between them. Map it (`kwargs_mask`), or reduce the value over the axis first "
                "(`jax.lax.pmean(value, axis_name)`).",
                code="batched_write",
                path=call.inventory.paths[culprits[0]],
            ) from error


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
        Vmap,
        fun,
        kwargs_mask=kwargs_mask,
        in_axes=in_axes,
        out_axes=out_axes,
        axis_name=axis_name,
        axis_size=axis_size,
        spmd_axis_name=spmd_axis_name,
    )


class ShardMap(Transformation):
    """A function mapped over shards; see `shard_map`."""

    def __init__(
        self,
        f: Callable[..., Any],
        *,
        mesh: Mesh,
        in_specs: Any,
        out_specs: Any,
        kwargs_mask: Any = None,
        check_vma: bool = True,
    ) -> None:
        super().__init__(
            f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, kwargs_mask=kwargs_mask,
            check_vma=check_vma,
        )  # fmt: skip
        self._mesh = mesh
        self._in_specs = in_specs if isinstance(in_specs, (tuple, list)) else (in_specs,)
        self._out_specs = out_specs
        self._mask = kwargs_mask
        self._check_vma = check_vma

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(kwargs)
        replicated = PartitionSpec()
        specs = resolve_mask(self._mask, call.inventory, replicated)
        fork = Fork(call, [spec == replicated for spec in specs])
        mapped = jax.shard_map(
            fork.lanes(call.pure(self._fun), lambda: jax.lax.axis_index(self._mesh.axis_names)),
            mesh=self._mesh,
            in_specs=(specs, *self._in_specs),
            out_specs=(self._out_specs, specs[: len(call.inventory.params)]),
            check_vma=self._check_vma,
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
        ShardMap,
        f,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        kwargs_mask=kwargs_mask,
        check_vma=check_vma,
    )

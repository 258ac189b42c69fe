"""`vmap`: every parameter is mapped along an axis or shared by all lanes, as the mask says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from chainrule.stateful._call import Call
from chainrule.stateful._errors import TrackingError
from chainrule.stateful._masks import resolve_mask
from chainrule.stateful._streams import Fork
from chainrule.stateful._transformation import Transformation, decorator

__all__ = ["Vmap", "vmap"]

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
        axes = resolve_mask(self._mask, call.plan, None)
        fork = Fork(call, [axis is None for axis in axes])
        lanes = fork.lanes(call.pure(self._fun), self._lane_index)
        try:
            result, values = self._map(lanes, args, axes, axes[: len(call.plan.params)])(
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
            paths = ", ".join(f"`{call.plan.paths[slot]}`" for slot in culprits)
            raise TrackingError(
                f"Under vmap, {paths} is shared by all lanes but was set to a value that differs "
                "between them. Map it (`kwargs_mask`), or reduce the value over the axis first "
                "(`jax.lax.pmean(value, axis_name)`).",
                code="batched_write",
                path=call.plan.paths[culprits[0]],
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

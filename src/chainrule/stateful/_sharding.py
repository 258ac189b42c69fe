"""`shard_map`: one function per device, every parameter split or replicated as the mask says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from chainrule.stateful._call import Call
from chainrule.stateful._masks import resolve_mask
from chainrule.stateful._streams import Fork
from chainrule.stateful._transformation import Transformation, decorator

__all__ = ["ShardMap", "shard_map"]


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
        specs = resolve_mask(self._mask, call.plan, replicated)
        fork = Fork(call, [spec == replicated for spec in specs])
        mapped = jax.shard_map(
            fork.lanes(call.pure(self._fun), lambda: jax.lax.axis_index(self._mesh.axis_names)),
            mesh=self._mesh,
            in_specs=(specs, *self._in_specs),
            out_specs=(self._out_specs, specs[: len(call.plan.params)]),
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

"""Lowering a call of the host: the FFI handler where it works, JAX's own callback elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import jax
import numpy as np
from jax._src import callback as _callback
from jax._src import checkify as _checkify
from jax._src import dispatch as _dispatch
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir as _mlir
from jax.extend.core import Primitive
from jax.interpreters import mlir

from chainrule._jaxpr._ffi import (
    TARGET,
    HostFunction,
    HostTarget,
    register_function,
    supports,
    target_is_registered,
)

ORDERED_EFFECT = _callback._OrderedIOEffect
"""Calls with this effect happen in program order, among themselves and with `io_callback(ordered=True)`."""


_SAYS_RETURNS_TOKEN = "returns_token" in signature(mlir.emit_python_callback).parameters


def is_exporting(ctx: Any) -> bool:
    """Whether a lowering is made for `jax.export`."""
    return bool(getattr(ctx.module_context.lowering_parameters, "for_export", False))


def see_nans(primitive: Primitive) -> None:
    """Let `checkify` report NaNs in the results of a primitive."""
    _checkify.error_checks[primitive] = partial(_checkify.nan_error_check, primitive)


def uses_ffi(ctx: Any) -> bool:
    """Whether calls lowered here go through the FFI handler.

    Not under `jit` over several devices: there XLA runs a call of an unknown target once per device on
    the whole value, and only JAX's own callbacks once. `CHAINRULE_HOST_CALL=callback` in the environment
    also says no, for a jaxlib whose interface has moved.
    """
    axes, platforms = ctx.module_context.axis_context, ctx.module_context.platforms
    if isinstance(axes, mlir.ShardingContext) and axes.num_devices > 1:
        return False
    dtypes = [aval.dtype for aval in (*ctx.avals_in, *ctx.avals_out)]
    forced = os.environ.get("CHAINRULE_HOST_CALL") == "callback"
    return (
        tuple(platforms) == ("cpu",) and supports(dtypes) and not forced and target_is_registered()
    )


def register_call(primitive: Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """Register a lowering that has to see every call, also equal ones, as `lower_overlapping` has.

    It knows the devices, as those of JAX's callbacks do: what it makes part of the program may need them.
    """
    _dispatch.prim_requires_devices_during_lowering.add(primitive)
    knows = signature(mlir.register_lowering).parameters
    # Where JAX cannot do without its cache, calls are lowered outside of the program, and all get a start.
    options: dict[str, Any] = {"cacheable": False} if "cacheable" in knows else {}
    mlir.register_lowering(primitive, rule, **options)


def lower_host_call(
    ctx: Any, *operands: Any, function: HostFunction, ordered: bool
) -> Sequence[Any]:
    """A call that fills all results."""
    if ordered or not uses_ffi(ctx):
        return _lower_callback(ctx, operands, function, ordered)
    return _ffi_call(ctx, operands, function)


def _ffi_call(ctx: Any, operands: Sequence[Any], function: HostFunction) -> Sequence[Any]:
    target = register_function(function, ctx.avals_in, ctx.avals_out)
    ctx.module_context.add_keepalive(target)
    return emit_call(ctx, operands, target)


def emit_call(ctx: Any, operands: Sequence[Any], target: HostTarget) -> Sequence[Any]:
    """Add a call of the FFI handler to the program."""
    lower = jax.ffi.build_ffi_lowering_function(TARGET)
    return lower(ctx, *operands, number=np.int64(target.number)).results


def _lower_callback(
    ctx: Any, operands: Sequence[Any], function: HostFunction, ordered: bool
) -> Sequence[Any]:
    token = ctx.tokens_in.get(ORDERED_EFFECT) if ordered else None
    # JAX before 0.9 knows it by the token it is given.
    options = {"returns_token": ordered} if _SAYS_RETURNS_TOKEN else {}
    results, token, _ = mlir.emit_python_callback(
        ctx,
        _as_callback(function, ctx.avals_out),
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=ordered,
        sharding=_callback._callback_op_sharding(
            ctx.module_context.axis_context, None, ctx.avals_out
        ),
        **options,
    )
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED_EFFECT: token})))
    return _on_all_devices(ctx, results)


def _on_all_devices(ctx: Any, results: Sequence[Any]) -> Sequence[Any]:
    """Results of a call that one of several devices makes for all.

    Without this they would be said to be on that device, and no other program would take them.
    """
    axes = ctx.module_context.axis_context
    if not isinstance(axes, mlir.ShardingContext) or axes.num_devices == 1:
        return results
    everywhere = _sharding_impls.GSPMDSharding.get_replicated(jax.devices()[: axes.num_devices])
    pairs = zip(results, ctx.avals_out, strict=True)
    return [
        _mlir.wrap_with_sharding_op(ctx, result, aval, _written(everywhere, aval.ndim))
        for result, aval in pairs
    ]


def _written(sharding: Any, ndim: int) -> Any:
    """A sharding as the partitioner in use reads it."""
    if jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        return sharding._to_sdy_sharding(ndim)
    return sharding._to_xla_hlo_sharding(ndim).to_proto()


def _as_callback(
    function: HostFunction, avals: Sequence[Any]
) -> Callable[..., tuple[np.ndarray, ...]]:
    def callback(*operands: Any) -> tuple[np.ndarray, ...]:
        results = [np.empty(aval.shape, aval.dtype) for aval in avals]
        text = function.run([np.asarray(operand) for operand in operands], results)
        if text is not None:
            raise RuntimeError(text)
        return tuple(results)

    return callback

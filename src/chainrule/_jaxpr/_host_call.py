"""Lowering a call of the host: the FFI handler where it works, JAX's own callback elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax._src import callback as _callback
from jax._src import checkify as _checkify
from jax._src import core as _core
from jax.extend.core import Primitive
from jax.interpreters import mlir

from chainrule._jaxpr._ffi import (
    TARGET,
    HostFunction,
    register_function,
    supports,
    target_is_registered,
)

__all__ = [
    "ORDERED_EFFECT",
    "array_aval",
    "is_exporting",
    "lower_host_call",
    "lower_overlapping",
    "see_nans",
    "uses_ffi",
]

ORDERED_EFFECT = _callback._OrderedIOEffect
"""Calls with this effect happen in program order, among themselves and with `io_callback(ordered=True)`."""


def array_aval(shape: Sequence[int], dtype: Any) -> Any:
    """The abstract value of an array."""
    return _core.ShapedArray(tuple(shape), np.dtype(dtype))


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


def lower_host_call(
    ctx: Any, *operands: Any, function: HostFunction, ordered: bool
) -> Sequence[Any]:
    """A call that fills all results."""
    if ordered or not uses_ffi(ctx):
        return _lower_callback(ctx, operands, function, ordered)
    return _ffi_call(ctx, operands, function)


def lower_overlapping(
    ctx: Any, *operands: Any, start: HostFunction, finish: HostFunction
) -> Sequence[Any]:
    """Two calls: one that starts the work and returns a ticket, one that waits for its results.

    XLA's CPU backend runs calls one after the other. Where its schedule has several starts before the first
    finish, which it usually has for independent calls, the work overlaps.
    """
    ticket = array_aval((), np.int32)
    started = _ffi_call(ctx.replace(avals_out=[ticket]), operands, start)
    return _ffi_call(ctx.replace(avals_in=[ticket]), started, finish)


def _ffi_call(ctx: Any, operands: Sequence[Any], function: HostFunction) -> Sequence[Any]:
    target = register_function(function, ctx.avals_in, ctx.avals_out)
    ctx.module_context.add_keepalive(target)
    lower = jax.ffi.build_ffi_lowering_function(TARGET)
    return lower(ctx, *operands, number=np.int64(target.number)).results


def _lower_callback(
    ctx: Any, operands: Sequence[Any], function: HostFunction, ordered: bool
) -> Sequence[Any]:
    token = ctx.tokens_in.get(ORDERED_EFFECT) if ordered else None
    results, token, _ = mlir.emit_python_callback(
        ctx,
        _as_callback(function, ctx.avals_out),
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=ordered,
        returns_token=ordered,
        sharding=_callback._callback_op_sharding(
            ctx.module_context.axis_context, None, ctx.avals_out
        ),
    )
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED_EFFECT: token})))
    return results


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

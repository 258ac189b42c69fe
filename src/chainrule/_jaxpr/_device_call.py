"""Calls out of compiled programs that are handed device memory, by JAX's `buffer_callback`.

XLA calls Python when it reaches the call, with the addresses of operands and results on the GPU and the
stream on which it works. Nothing is copied and nothing is waited for: the function puts its work on the
stream, behind what computes the operands, and XLA puts behind it what reads the results.

Memory: operands and results are XLA's own. They are valid until the function returns, as far as Python is
concerned, and on the stream until the work that was put there is done.

Versions of JAX differ in whether `buffer_callback` exists; where it is missing, `lower_host_call`
carries arrays through the host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax.interpreters import mlir

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # JAX before 0.5.1, or after its promised successor
    buffer_callback = None  # type: ignore[assignment]


class DeviceFunction(Protocol):
    """What a call is answered by."""

    def run_on_device(self, stream: int, operands: list[Any], results: list[Any]) -> str | None:
        """Put the work on a stream; return `None`, or the text of the error. Never raises."""
        ...


def hands_over_device_memory(ctx: Any) -> bool:
    """Whether calls lowered here can be handed device memory.

    Not under `jit` over several devices, where XLA would make the call once per device on the whole value.
    `CHAINRULE_HOST_CALL=callback` in the environment also says no.
    """
    axes, platforms = ctx.module_context.axis_context, ctx.module_context.platforms
    if isinstance(axes, mlir.ShardingContext) and axes.num_devices > 1:
        return False
    forced = os.environ.get("CHAINRULE_HOST_CALL") == "callback"
    return tuple(platforms) == ("cuda",) and buffer_callback is not None and not forced


def lower_device_call(ctx: Any, *operands: Any, function: DeviceFunction) -> Sequence[Any]:
    """A call that fills all results."""

    def callback(context: Any, results: Sequence[Any], *buffers: Any) -> None:
        text = function.run_on_device(context.stream, list(buffers), list(results))
        if text is not None:
            raise RuntimeError(text)

    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_out]
    call = buffer_callback(callback, types)
    return mlir.lower_fun(lambda *arrays: call(*arrays), multiple_results=True)(ctx, *operands)

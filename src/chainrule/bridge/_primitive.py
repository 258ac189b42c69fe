"""One primitive for every call of a component.

    host_call_p.bind(*primals, *vectors, call=Call(site, request, batch))

The operands are all arrays of the site's inputs, then the vectors of the request's slots in order. The rules
only rearrange requests (`_requests` has the algebra): differentiating appends a slot, transposing exchanges a
slot and the result, batching adds an axis. What a request means to a component is the business of `_routes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir

from chainrule._errors import CapabilityError
from chainrule._jaxpr._host_call import (
    ORDERED_EFFECT,
    is_exporting,
    lower_host_call,
    register_call,
    see_nans,
    uses_ffi,
)
from chainrule._jaxpr._meshes import array_aval
from chainrule._jaxpr._overlapping import lower_overlapping
from chainrule.bridge._ask import bind_call, host_call_p
from chainrule.bridge._batching import batching_rule
from chainrule.bridge._differentiate import jvp_rule, transpose_rule
from chainrule.bridge._host import Batch, Call, host_call
from chainrule.bridge._inline import NotTraceableError, trace_call
from chainrule.bridge._operands import hand_out
from chainrule.bridge._overlap import overlapping_pair
from chainrule.bridge._requests import apply_request
from chainrule.bridge._site import Site
from chainrule.bridge._target import Target
from chainrule.bridge._types import is_inexact


def call_site(site: Site, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of a site for arrays or tracers."""
    return bind_call(Call(site, apply_request(site), Batch.none(len(arrays))), arrays)


def _implement(*operands: Any, call: Call) -> list[jax.Array]:
    """Outside of `jit` XLA has no part in a call, and exceptions pass as they are."""
    results = host_call(call).evaluate([np.asarray(operand) for operand in operands])
    check_nans(call.site.target, call.request.result.paths(call.site), results)
    return hand_out(results, operands)


def check_nans(target: Target, paths: Sequence[str], results: Sequence[Any]) -> None:
    """What `jax_debug_nans` asks of every operation; here the message can say whose NaN it is."""
    if not jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return
    for path, result in zip(paths, results, strict=False):
        array = np.asarray(result)
        if is_inexact(array.dtype) and np.isnan(array).any():
            where = f" at `{path}`" if path else ""
            raise FloatingPointError(f"{target.name} returned NaN{where} (jax_debug_nans is on).")


def _evaluate_abstractly(*operands: Any, call: Call) -> tuple[list[Any], set[Any]]:
    effects = {ORDERED_EFFECT} if _is_ordered(call) else set()
    return [array_aval(type_.shape, type_.dtype, operands) for type_ in call.result_types], effects


def _lower(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    target = call.site.target
    if target.runs_jax:
        return _lower_traced(ctx, *operands, call=call)
    if is_exporting(ctx):
        raise not_exportable(target)
    function = host_call(call)
    if target.is_remote and not _is_ordered(call) and uses_ffi(ctx):
        return lower_overlapping(ctx, *operands, **overlapping_pair(function))
    return lower_host_call(ctx, *operands, function=function, ordered=_is_ordered(call))


def not_exportable(target: Target) -> CapabilityError:
    """What to raise where `jax.export`, or a symbolic shape, which only `jax.export` has, meets a call."""
    return CapabilityError(
        f"{target.name} is called on this host and cannot be part of an exported program. Only "
        "components written in JAX that run in this process can: they become part of the program.",
        code="not_exportable",
    )


def _lower_traced(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    """The call of a component that is written in JAX, as part of the program."""
    target = call.site.target
    try:
        if target.jax_function is None or _is_ordered(call):
            raise NotTraceableError
        return mlir.lower_fun(partial(trace_call, call), multiple_results=True)(ctx, *operands)
    except NotTraceableError as error:
        raise CapabilityError(
            f"{call!r} runs JAX and would do so inside a compiled program's call of the host, where JAX can "
            "deadlock; part of the program it cannot be, for it needs the numbers themselves or has side "
            "effects. Make it traceable, let JAX differentiate the component's function (`inline=True`), or "
            "give it a process of its own: `chainrule.client.Component.from_source`, or "
            "serve it.",
            code="jax_in_host_call",
        ) from error


def _is_ordered(call: Call) -> bool:
    return call.site.options.effects == "ordered"


host_call_p.def_impl(_implement)
host_call_p.def_effectful_abstract_eval(_evaluate_abstractly)
ad.primitive_jvps[host_call_p] = jvp_rule
ad.primitive_transposes[host_call_p] = transpose_rule
batching.primitive_batchers[host_call_p] = batching_rule
register_call(host_call_p, _lower)
see_nans(host_call_p)

"""The batching rule of the host call.

In this order:

    Jacobian      only vectors are batched, as in `jacfwd` and `jacrev`, there are enough of them and the
                  target has a Jacobian: ask for it once and multiply.
    native        the target says how it batches (or the caller does, by `expand_dims` or
                  `broadcast_all`): one call with the batch axis in front of every array.
    host loop     one host call that fans out over the examples, concurrently where the target allows; a
                  target that takes batches of vectors gets those of one point in one request.

Ranks say nothing about how a function batches: a matrix product takes a third axis without complaint and
computes something else. So nothing is guessed from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from chainrule._errors import CapabilityError
from chainrule._jaxpr._meshes import divided_alike
from chainrule.bridge._ask import bind_call
from chainrule.bridge._host import Batch, Call
from chainrule.bridge._materialize import jacobian_pays, multiply_jacobian
from chainrule.bridge._native_batching import batched_site, is_native


def batching_rule(operands: Any, axes: Any, *, call: Call) -> tuple[list[Any], list[int]]:
    """All results come back with the batch axis in front."""
    if call.site.options.vmap_method is None:
        raise CapabilityError(
            f"{call.site.target.name} is called with `vmap_method=None`, which forbids `vmap` (and "
            'Jacobians, which are batches of products). Use `vmap_method="auto"`.',
            code="vmap_forbidden",
        )
    mapped = [axis is not None for axis in axes]
    size = next(
        operand.shape[axis]
        for operand, axis in zip(operands, axes, strict=True)
        if axis is not None
    )
    fronted = [
        operand if axis is None else jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands, axes, strict=True)
    ]
    if jacobian_pays(call, mapped, size):
        results = multiply_jacobian(call, fronted, mapped, size)
    else:
        results = _native(call, fronted, mapped, size) or _host_loop(call, fronted, mapped, size)
    batched = [operand for operand, has in zip(fronted, mapped, strict=True) if has]
    return divided_alike(results, batched), [0] * len(results)


def _host_loop(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any]:
    return bind_call(replace(call, batch=call.batch.with_outer(size, mapped)), operands)


def _native(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any] | None:
    # No function has to know what to do with a batch of nothing.
    if size == 0 or call.batch.sizes or not is_native(call.site, call.request):
        return None
    only_apply = call.request.name == "apply" and call.site.options.vmap_method == "expand_dims"
    leading = [size if has or not only_apply else 1 for has in mapped]
    site = batched_site(call.site, size, leading[: len(call.site.inputs)])
    if site is None:
        return None
    lifted = [
        operand if has else jnp.broadcast_to(operand, (lead, *operand.shape))
        for operand, has, lead in zip(operands, mapped, leading, strict=True)
    ]
    return bind_call(Call(site, call.request, Batch.none(len(lifted))), lifted)

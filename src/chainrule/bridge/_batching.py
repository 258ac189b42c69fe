"""The batching rule of the host call.

In this order:

    Jacobian      only vectors are batched, as in `jacfwd` and `jacrev`, there are enough of them and the
                  target has a Jacobian: ask for it once and multiply.
    native        the target says how it batches (or the caller does, by `expand_dims` or
                  `broadcast_all`): one call with the batch axis in front of every array.
    host loop     one host call that fans out over the examples, concurrently where the target allows.

Ranks say nothing about how a function batches: a matrix product takes a third axis without complaint and
computes something else. So nothing is guessed from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import CapabilityError
from chainrule.bridge._ask import ask, host_call_p
from chainrule.bridge._calculus import open_call
from chainrule.bridge._host import Batch, Call
from chainrule.bridge._native_batching import batched_site, is_native
from chainrule.runtime._derivatives import JACOBIAN

__all__ = ["batching_rule"]


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
    if _jacobian_pays(call, mapped, size):
        results = _multiply_jacobian(call, fronted, mapped, size)
    else:
        results = _native(call, fronted, mapped, size) or _host_loop(call, fronted, mapped, size)
    return results, [0] * len(results)


def _host_loop(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any]:
    return host_call_p.bind(
        *operands, call=replace(call, batch=call.batch.with_outer(size, mapped))
    )


def _native(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any] | None:
    if call.batch.sizes or not is_native(call.site, call.request):
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
    return host_call_p.bind(*lifted, call=Call(site, call.request, _no_batch(lifted)))


def _no_batch(operands: Sequence[Any]) -> Batch:
    return Batch((), ((),) * len(operands))


def _jacobian_pays(call: Call, mapped: list[bool], size: int) -> bool:
    request, site = call.request, call.site
    wish = site.options.materialize_jacobian
    if wish is False or request.name not in ("jvp", "vjp") or any(mapped[: len(site.inputs)]):
        return False
    types = (*request.result.types(site), *request.slots[0].types(site))
    has_complex = any(type_.dtype.kind == "c" for type_ in types)
    if JACOBIAN.endpoint not in site.target.endpoints or has_complex:
        return False
    # A Jacobian costs about as many products as the smaller of its two sides.
    enough = size >= min(request.result.size(site), request.slots[0].size(site))
    return bool(wish) or enough


def _multiply_jacobian(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any]:
    site, request, sizes = call.site, call.request, call.batch.sizes
    primals, (vectors,) = open_call(call, operands)
    is_forward = request.result.side == "outputs"
    rows, columns = (
        (request.result, vectors.space) if is_forward else (vectors.space, request.result)
    )
    blocks = iter(ask(site, sizes, primals, [], rows, columns))
    grid = [[next(blocks) for _ in columns.positions] for _ in rows.positions]
    examples = math.prod(sizes)
    flat_vectors = [
        _flatten_vector(value, (has, *axes), (size, *sizes))
        for value, has, axes in zip(
            vectors.values, mapped[len(site.inputs) :], vectors.mapped, strict=True
        )
    ]
    results = []
    for number, type_ in enumerate(request.result.types(site)):
        terms = [
            jnp.einsum(
                "eoi,bei->beo" if is_forward else "eoi,beo->bei",
                _flatten_block(block, examples, row_type, column_type).astype(type_.dtype),
                vector.astype(type_.dtype),
                precision=jax.lax.Precision.HIGHEST,
            )
            for block, vector, row_type, column_type in _pairs(
                site, grid, rows, columns, number, is_forward, flat_vectors
            )
        ]
        results.append(sum(terms[1:], terms[0]).reshape((size, *sizes, *type_.shape)))
    return results


def _pairs(site, grid, rows, columns, number, is_forward, vectors):
    for other, vector in enumerate(vectors):
        row, column = (number, other) if is_forward else (other, number)
        yield grid[row][column], vector, rows.types(site)[row], columns.types(site)[column]


def _flatten_vector(value: Any, has: tuple[bool, ...], sizes: tuple[int, ...]) -> Any:
    """To [batch, examples, elements], whatever axes the vector has."""
    axes = iter(value.shape[: sum(has)])
    spread = tuple(next(axes) if present else 1 for present in has)
    shape = value.shape[sum(has) :]
    full = jnp.broadcast_to(value.reshape((*spread, *shape)), (*sizes, *shape))
    return full.reshape((sizes[0], math.prod(sizes[1:]), math.prod(shape)))


def _flatten_block(block: Any, examples: int, row: Any, column: Any) -> Any:
    return block.reshape((examples, row.size, column.size))

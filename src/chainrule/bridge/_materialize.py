"""Many products with one Jacobian: ask for the Jacobian and multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule.bridge._ask import ask
from chainrule.bridge._calculus import Vectors, open_call
from chainrule.bridge._host import Call
from chainrule.bridge._requests import Space
from chainrule.runtime.internal import JACOBIAN


def jacobian_pays(call: Call, mapped: list[bool], size: int) -> bool:
    """Whether a batch of this size, of vectors only, is better answered by the Jacobian."""
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


def multiply_jacobian(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any]:
    """The results of `size` products, from one Jacobian for each example of the call's own batch."""
    site, result, sizes = call.site, call.request.result, call.batch.sizes
    primals, (vectors,) = open_call(call, operands)
    is_forward = result.side == "outputs"
    rows, columns = (result, vectors.space) if is_forward else (vectors.space, result)
    matrix = _jacobian_matrix(call, primals, rows, columns)
    stacked = _stack_vectors(call, vectors, mapped[len(site.inputs) :], size)
    dtype = _common_dtype([matrix.dtype, stacked.dtype])
    product = jnp.einsum(
        "eoi,bei->beo" if is_forward else "eoi,beo->bei",
        matrix.astype(dtype),
        stacked.astype(dtype),
        precision=jax.lax.Precision.HIGHEST,
    )
    types = result.types(site)
    parts = jnp.split(product, np.cumsum([type_.size for type_ in types])[:-1], axis=-1)
    return [
        part.reshape((size, *sizes, *type_.shape)).astype(type_.dtype)
        for part, type_ in zip(parts, types, strict=True)
    ]


def _jacobian_matrix(call: Call, primals: Vectors, rows: Space, columns: Space) -> Any:
    """All blocks as one array [examples, output elements, input elements]."""
    examples = math.prod(call.batch.sizes)
    blocks = iter(ask(call.site, call.batch.sizes, primals, [], rows, columns))
    grid = [
        [
            next(blocks).reshape((examples, row.size, column.size))
            for column in columns.types(call.site)
        ]
        for row in rows.types(call.site)
    ]
    dtype = _common_dtype([block.dtype for line in grid for block in line])
    lines = [jnp.concatenate([block.astype(dtype) for block in line], axis=2) for line in grid]
    return jnp.concatenate(lines, axis=1)


def _stack_vectors(call: Call, vectors: Vectors, mapped: list[bool], size: int) -> Any:
    """All vectors as one array [batch, examples, elements], whatever axes each of them has."""
    sizes = (size, *call.batch.sizes)
    dtype = _common_dtype([value.dtype for value in vectors.values])
    flat = []
    for value, is_mapped, axes in zip(vectors.values, mapped, vectors.mapped, strict=True):
        has = (is_mapped, *axes)
        present = iter(value.shape[: sum(has)])
        spread = tuple(next(present) if each else 1 for each in has)
        shape = value.shape[sum(has) :]
        full = jnp.broadcast_to(value.reshape((*spread, *shape)), (*sizes, *shape))
        flat.append(full.reshape((size, math.prod(sizes[1:]), math.prod(shape))).astype(dtype))
    return jnp.concatenate(flat, axis=2)


def _common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Of arrays that are put side by side. float16 and bfloat16 meet in float32, which NumPy does not say."""
    try:
        return np.result_type(*dtypes)
    except TypeError:
        return np.result_type(np.float32, *(dtype for dtype in dtypes if dtype.itemsize > 2))

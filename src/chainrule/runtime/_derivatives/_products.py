"""Products of a Jacobian block with vectors, dense or sparse, one vector or a batch of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainrule.runtime._codec import SparseArray
from chainrule.runtime._derivatives._kinds import DerivativeKind

__all__ = ["contract"]


def contract(kind: DerivativeKind, block: Any, vector: Any, *, batched: bool) -> np.ndarray:
    """One block's contribution to a product.

    Args:
        kind: `JVP` contracts the input axes, which are last; `VJP` the output axes, which are first.
        block: an array or `SparseArray` of output shape + input shape.
        vector: a tangent or cotangent; with `batched` it has one leading axis more.
        batched: whether there is that axis; the result has it too.
    """
    vector = np.asarray(vector)
    rank = vector.ndim - batched
    split = len(block.shape) - rank if kind.vector_over == "inputs" else rank
    out_shape, in_shape = block.shape[:split], block.shape[split:]
    result_shape = out_shape if kind.vector_over == "inputs" else in_shape
    vectors = vector.reshape((*vector.shape[:batched], -1))
    if isinstance(block, SparseArray):
        rows, columns = _flat_places(block, out_shape, in_shape)
        pair = (columns, rows) if kind.vector_over == "inputs" else (rows, columns)
        product = _sparse_product(block.values, *pair, vectors, math.prod(result_shape))
    else:
        matrix = np.asarray(block).reshape(math.prod(out_shape), math.prod(in_shape))
        product = vectors @ (matrix.T if kind.vector_over == "inputs" else matrix)
    return product.reshape(vector.shape[:batched] + tuple(result_shape))


def _flat_places(
    block: SparseArray, out_shape: tuple[int, ...], in_shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    axes = tuple(block.indices.T)
    zeros = np.zeros(block.nnz, np.int64)
    rank = len(out_shape)
    rows = np.ravel_multi_index(axes[:rank], out_shape) if out_shape else zeros
    columns = np.ravel_multi_index(axes[rank:], in_shape) if in_shape else zeros
    return rows, columns


def _sparse_product(
    values: np.ndarray, read: np.ndarray, write: np.ndarray, vectors: np.ndarray, size: int
) -> np.ndarray:
    terms = vectors[..., read] * values
    product = np.zeros((size, *vectors.shape[:-1]), terms.dtype)
    np.add.at(product, write, np.moveaxis(terms, -1, 0))
    return np.moveaxis(product, 0, -1)

"""Products of a Jacobian block with vectors, dense or sparse, one vector or a batch of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainrule._codec import SparseArray
from chainrule.runtime._derivatives._kinds import DerivativeKind
from chainrule.runtime._derivatives._layout import check_shape


def contract(
    kind: DerivativeKind, block: Any, vector: Any, *, input_rank: int, path: str, batched: bool
) -> np.ndarray:
    """One block's contribution to a product.

    Args:
        kind: `JVP` contracts the input axes, which are last; `VJP` the output axes, which are first.
        block: an array or `SparseArray` of output shape + input shape.
        vector: a tangent or cotangent in the shape of its axes; with `batched` one leading axis more.
        input_rank: how many axes of the block are the input's.
        path: where the vector belongs.
        batched: whether there is that axis; the result has it too.

    Raises:
        InputError: the vector does not fit the block (`vector_shape_mismatch`).
    """
    split = len(block.shape) - input_rank
    out_shape, in_shape = tuple(block.shape[:split]), tuple(block.shape[split:])
    over_inputs = kind.vector_over == "inputs"
    given_shape, result_shape = (in_shape, out_shape) if over_inputs else (out_shape, in_shape)
    vector = np.asarray(vector)
    check_shape(vector.shape, given_shape, path, batched=batched)
    vectors = vector.reshape((*vector.shape[:batched], math.prod(given_shape)))
    if isinstance(block, SparseArray):
        rows, columns = _flat_places(block, out_shape, in_shape)
        pair = (columns, rows) if over_inputs else (rows, columns)
        product = _sparse_product(block.values, *pair, vectors, math.prod(result_shape))
    else:
        matrix = np.asarray(block).reshape(math.prod(out_shape), math.prod(in_shape))
        product = vectors @ (matrix.T if over_inputs else matrix)
    return product.reshape(vector.shape[:batched] + result_shape)


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

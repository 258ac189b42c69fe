"""Sparse arrays in coordinate form, for Jacobian blocks with few entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule._codec._declared import DEFAULT_LIMITS, check_shape
from chainrule._errors import (
    DecodeError,
    InputError,
    LimitError,
    missing_dependency,
)


@dataclass(frozen=True, eq=False)
class SparseArray:
    """An array given by the entries that are not zero; entries at the same place add up.

    Attributes:
        shape: shape of the dense array.
        indices: integers of shape `(entries, rank)`, one row per entry, all inside `shape`.
        values: shape `(entries,)`.

    Raises:
        InputError: indices and values do not fit the shape (`sparse_malformed`).

    Example:
        >>> SparseArray((2, 3), [[0, 0], [1, 2]], [1.0, 5.0]).todense().tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    """

    shape: tuple[int, ...]
    indices: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "values", np.asarray(self.values))
        indices = np.asarray(self.indices)
        if indices.size == 0 and indices.dtype.kind == "f":
            indices = np.zeros((len(self.values), len(self.shape)), np.int64)
        object.__setattr__(self, "indices", indices)
        self._check()

    def _check(self) -> None:
        entries, rank = len(self.values) if self.values.ndim == 1 else -1, len(self.shape)
        if self.indices.dtype.kind not in "iu" or self.indices.shape != (entries, rank):
            raise InputError(
                f"Expected integer indices of shape (entries, {rank}) and values of shape (entries,); "
                f"found {self.indices.dtype.name}{list(self.indices.shape)} and "
                f"{self.values.dtype.name}{list(self.values.shape)}.",
                code="sparse_malformed",
            )
        if self.indices.size and (
            bool((self.indices < 0).any()) or bool((self.indices >= np.array(self.shape)).any())
        ):
            raise InputError(
                f"Indices lie outside the shape {list(self.shape)}.", code="sparse_malformed"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return len(self.values)

    def todense(self, *, max_bytes: int | None = None) -> np.ndarray[Any, Any]:
        """The dense array.

        Args:
            max_bytes: refuse to build a larger one; for shapes that were received.

        Raises:
            LimitError: the dense array would be larger than `max_bytes` (`array_too_large`).
        """
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        if max_bytes is not None and nbytes > max_bytes:
            raise LimitError(
                f"The dense form of this sparse array needs {nbytes} bytes, {max_bytes} are allowed. Over "
                "HTTP, accept it as it is: Accept: application/json; sparse=coo.",
                code="array_too_large",
                details={"nbytes": nbytes, "limit": max_bytes},
            )
        dense = np.zeros(self.shape, self.dtype)
        # The leading axis gives scalars an index too.
        np.add.at(dense[None], (np.zeros(self.nnz, np.intp), *self.indices.T), self.values)
        return dense

    @classmethod
    def from_dense(cls, array: Any) -> SparseArray:
        """Keep the entries that are not zero."""
        dense = np.asarray(array)
        indices = np.argwhere(dense)
        return cls(dense.shape, indices, dense[tuple(indices.T)].reshape(-1))

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseArray:
        """From any `scipy.sparse` matrix or array."""
        coordinates = matrix.tocoo()
        indices = np.stack([np.asarray(axis) for axis in coordinates.coords], axis=-1)
        return cls(coordinates.shape, indices, coordinates.data)

    def to_scipy(self) -> Any:
        """As `scipy.sparse.coo_array`."""
        try:
            from scipy import sparse
        except ImportError:
            raise missing_dependency("This conversion needs", "scipy", "scipy") from None
        return sparse.coo_array((self.values, tuple(self.indices.T)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, array: Any) -> SparseArray:
        """From `jax.experimental.sparse.BCOO` without batch or dense dimensions."""
        if array.n_batch or array.n_dense:
            raise InputError(
                f"Expected a BCOO array without batch and dense dimensions; found n_batch="
                f"{array.n_batch}, n_dense={array.n_dense}. Use bcoo_update_layout first.",
                code="sparse_malformed",
            )
        indices, values = np.asarray(array.indices), np.asarray(array.data)
        # JAX pads with indices that lie just outside the shape; such entries do not exist.
        inside = (indices < np.array(array.shape)).all(axis=-1)
        return cls(array.shape, indices[inside], values[inside])

    def to_bcoo(self) -> Any:
        """As `jax.experimental.sparse.BCOO`."""
        try:
            import jax.numpy as jnp
            from jax.experimental import sparse
        except ImportError:
            raise missing_dependency("This conversion needs", "jax", "jax") from None
        return sparse.BCOO((jnp.asarray(self.values), jnp.asarray(self.indices)), shape=self.shape)


def decoded_sparse(shape: Any, indices: Any, values: Any) -> SparseArray:
    """A sparse array from received parts; parts that do not fit together are a `DecodeError`."""
    try:
        return SparseArray(check_shape(shape), indices, values)
    except InputError as error:
        raise DecodeError(error.message, code=error.code) from None


def to_dense(array: SparseArray) -> np.ndarray[Any, Any]:
    """The dense form for a reader that does not know sparse arrays, unless it is unreasonably large."""
    return array.todense(max_bytes=DEFAULT_LIMITS.max_array_bytes)


def flat_entries(block: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The places of the entries in a flattened array, each once and in order, and their values.

    For tools that keep one of several entries at the same place, or refuse them: here they add up.

    Args:
        block: a `SparseArray`, or a dense array, whose entries are those that are not zero.
    """
    sparse = block if isinstance(block, SparseArray) else SparseArray.from_dense(block)
    axes = tuple(sparse.indices.T)
    flat = np.ravel_multi_index(axes, sparse.shape) if axes else np.zeros(sparse.nnz, int)
    places, where = np.unique(flat, return_inverse=True)
    return places, np.bincount(where, weights=sparse.values, minlength=places.size)

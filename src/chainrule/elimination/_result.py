"""Jacobian blocks as objects: sparse, printable, usable in linear algebra."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._errors import InputError
from chainrule._registry import provided
from chainrule._tables import html_table
from chainrule.elimination._blocks import Block, common_dtype, dense, multiply, scaled
from chainrule.elimination._structure import (
    Structure,
    dense_term,
    structure_of,
    zero_structure,
)

if TYPE_CHECKING:
    from jax.experimental.sparse import BCOO

_MOST_ENTRIES = 1_000_000
"""Of a block that is drawn."""


@jax.tree_util.register_pytree_node_class
class StructuredJacobian:
    """One block of a Jacobian, ∂output/∂input, that stores only what is not structurally zero.

    It is a pytree (the stored entries are its leaves), so it passes through `jit`, `vmap` and `scan`.

    Attributes:
        structure: which axes are diagonal, dense, replicated or selected.
        values: the stored entries, one array (or `None`) per term of the structure.
        dtype: of the dense form.
    """

    def __init__(self, structure: Structure, values: tuple[Any, ...], dtype: Any) -> None:
        self.structure = structure
        self.values = tuple(values)
        self.dtype = jnp.dtype(dtype)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Structure, Any]]:
        """The stored entries, and everything static."""
        return self.values, (self.structure, self.dtype)

    @classmethod
    def tree_unflatten(
        cls, static: tuple[Structure, Any], values: tuple[Any, ...]
    ) -> StructuredJacobian:
        """The inverse of `tree_flatten`."""
        new = object.__new__(cls)
        new.structure, new.dtype = static
        new.values = tuple(values)
        return new

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.structure.out_shape

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        return self.structure.in_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense form: output axes, then input axes."""
        return (*self.out_shape, *self.in_shape)

    @property
    def nse(self) -> int:
        """Number of specified entries: structural non-zeros, summed over the terms."""
        return self.structure.entries

    def __repr__(self) -> str:
        kind = self.dtype.name.replace("float", "f")
        total = math.prod(self.shape)
        return (
            f"StructuredJacobian({kind}{list(self.out_shape)} ← {list(self.in_shape)}, "
            f"{self.nse} of {total} entries: {self.structure.kind})"
        )

    def _repr_html_(self) -> str:
        total = math.prod(self.shape)
        share = f" ({self.nse / total:.2%})" if total else ""
        facts = {
            "output ← input": f"{list(self.out_shape)} ← {list(self.in_shape)}",
            "dtype": self.dtype.name,
            "entries": f"{self.nse:,} of {total:,}{share}",
            "structure": self.structure.kind,
        }
        picture = provided("spy_picture")(self).svg() if self.nse <= _MOST_ENTRIES else ""
        table = html_table(facts.items(), has_row_heads=True)
        return f"<strong>StructuredJacobian</strong>{table}{picture}"

    def todense(self) -> jax.Array:
        """The block as one array of shape `out_shape + in_shape`."""
        return dense(self._block, self.dtype)

    @property
    def T(self) -> StructuredJacobian:  # noqa: N802 - the name arrays use
        """The transposed block, ∂input/∂output of the linear map; nothing is copied but axes order."""
        if self.structure.is_zero:
            return StructuredJacobian(zero_structure(self.in_shape, self.out_shape), (), self.dtype)
        # Also of a complex block: nothing is conjugated, J.T is the transpose and not the adjoint.
        flipped = [term.transposed() for term in self.structure.terms]
        values = tuple(
            None if value is None else value.transpose(order)
            for (_, order), value in zip(flipped, self.values, strict=True)
        )
        return StructuredJacobian(structure_of([term for term, _ in flipped]), values, self.dtype)

    def __matmul__(self, other: Any) -> Any:
        """Apply the block: to an array of shape `in_shape` (+ further axes), or to another block."""
        if isinstance(other, StructuredJacobian):
            self._check_middle(other.out_shape)
            product = multiply(self._block, other._block)
            dtype = common_dtype(self.dtype, other.dtype)
            return StructuredJacobian(product.structure, product.values, dtype)
        other = jnp.asarray(other)
        rank = len(self.in_shape)
        self._check_middle(other.shape[:rank])
        if self.structure.is_zero or other.size == 0:
            return jnp.zeros((*self.out_shape, *other.shape[rank:]), self.dtype)
        term = dense_term(other.shape[:rank], other.shape[rank:])
        block = Block(structure_of([term]), (other.reshape(term.stored_shape),))
        return dense(multiply(self._block, block), common_dtype(self.dtype, other.dtype))

    def _check_middle(self, shape: tuple[int, ...]) -> None:
        if tuple(shape) != self.in_shape:
            raise InputError(
                f"The block maps arrays of shape {list(self.in_shape)} to {list(self.out_shape)}, "
                f"but was applied to shape {list(shape)}. Reshape the operand, or use `.T`.",
                code="shape_mismatch",
            )

    def coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of every specified entry, in the flattened (matrix) form. Static."""
        found = [term.flat_positions() for term in self.structure.terms]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows = np.concatenate([r.reshape(-1) for r, _ in found])
        return rows, np.concatenate([c.reshape(-1) for _, c in found])

    def entries(self) -> jax.Array:
        """The specified entries in the order of `coordinates`."""
        # The values may be traced and the places are not: coefficients are written by NumPy, values laid over
        # them.
        constants = [
            np.full(t.entries, 0.0 if t.valued else t.coefficient) for t in self.structure.terms
        ]
        entries = jnp.asarray(np.concatenate([*constants, np.zeros(0)]), self.dtype)
        start = 0
        for term, value in zip(self.structure.terms, self.values, strict=True):
            if term.valued:
                stored = scaled(value, term.coefficient, self.dtype)
                laid = jax.lax.broadcast_in_dim(stored, term.sizes, term.stored)
                entries = jax.lax.dynamic_update_slice(entries, laid.reshape(-1), (start,))
            start += term.entries
        return entries

    def to_bcoo(self) -> BCOO:
        """The block as a two-dimensional `jax.experimental.sparse.BCOO` matrix."""
        from jax.experimental.sparse import BCOO

        indices = np.stack(self.coordinates(), axis=1).astype(np.int32)
        shape = math.prod(self.out_shape), math.prod(self.in_shape)
        return BCOO((self.entries(), jnp.asarray(indices)), shape=shape)

    def to_scipy(self) -> Any:
        """The block as a two-dimensional `scipy.sparse.csr_array`; entries must be concrete."""
        from scipy.sparse import coo_array

        rows, columns = self.coordinates()
        shape = math.prod(self.out_shape), math.prod(self.in_shape)
        return coo_array((np.asarray(self.entries()), (rows, columns)), shape=shape).tocsr()

    def spy(self, ax: Any = None) -> Any:
        """Draw where the specified entries are, as `view.spy` does; needs matplotlib. Returns the axes."""
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        return provided("spy_picture")(self).plot(ax)

    @property
    def _block(self) -> Block:
        return Block(self.structure, self.values)

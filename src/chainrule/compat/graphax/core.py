"""The three functions of graphax, returning what they return there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chainrule import elimination

__all__ = ["jacve", "tree_allclose", "vertex_elimination_jaxpr"]

Order = str | Sequence[int]


def jacve(
    fun: Callable[..., Any],
    order: Order,
    argnums: Sequence[int] | int = (0,),
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of a function by vertex elimination.

    Args:
        fun: the function.
        order: `"fwd"`, `"rev"`, or vertex numbers.
        argnums: which arguments; several give a tuple of blocks per output, one gives the block.
        has_aux: return `(values, jacobians)`.
        count_ops: return `(result, {"num_muls", "num_adds", "order_counts"})`.
        sparse_representation: leave the blocks sparse.

    Raises:
        OrderError: (a `ValueError`, when called) the order misses vertices, or names unknown ones.
    """
    return elimination.jacve(
        fun, order, _one_or_several(argnums), has_aux, count_ops, sparse_representation
    )


def vertex_elimination_jaxpr(
    jaxpr: Any,
    order: Order,
    consts: Sequence[Any],
    *args: Any,
    argnums: Sequence[int] | int = (0,),
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
) -> Any:
    """`jacve` of a jaxpr at a point: one entry per output.

    Args:
        jaxpr: the program, open.
        order: as in `jacve`.
        consts: values of its constants.
        *args: values of its inputs.
        argnums: as in `jacve`.
        has_aux: as in `jacve`.
        count_ops: as in `jacve`.
        sparse_representation: as in `jacve`.
    """
    return elimination.vertex_elimination_jaxpr(
        jaxpr,
        order,
        consts,
        *args,
        argnums=_one_or_several(argnums),
        has_aux=has_aux,
        count_ops=count_ops,
        sparse_representation=sparse_representation,
    )


def tree_allclose(tree: Any, other: Any, equal_nan: bool = False) -> bool:
    """Whether two pytrees have the same structure and close leaves."""
    return elimination.tree_allclose(tree, other, equal_nan=equal_nan)


def _one_or_several(argnums: Sequence[int] | int) -> Any:
    """One argument has no tuple around its block there."""
    if isinstance(argnums, int):
        return argnums
    return argnums[0] if len(argnums) == 1 else tuple(argnums)

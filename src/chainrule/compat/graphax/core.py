"""The three functions of graphax, returning what they return there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from chainrule import elimination
from chainrule._jaxpr import ClosedJaxpr, evaluate
from chainrule.elimination import StructuredJacobian

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

    Returns:
        A function of the same arguments. Of the only output of a function of the only argument, value and
        block are tuples of one.

    Raises:
        OrderError: (a `ValueError`, when called) the order misses vertices, or names unknown ones.

    Example:
        >>> import jax.numpy as jnp
        >>> (block,) = jacve(jnp.sin, "rev")(jnp.zeros(2))
        >>> block.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    native = elimination.jacve(
        fun, order, _one_or_several(argnums), has_aux, count_ops, sparse_representation
    )

    @wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        found = native(*args, **kwargs)
        if len(jax.tree.leaves((args, kwargs))) > 1:
            return found
        result, *counts = found if count_ops else (found,)
        result = tuple(map(_in_tuple, result)) if has_aux else _in_tuple(result)
        return (result, *counts) if count_ops else result

    return jacobian


def vertex_elimination_jaxpr(
    jaxpr: Any,
    order: Order,
    consts: Sequence[Any],
    *args: Any,
    has_aux: bool = False,
    argnums: Sequence[int] | int = (0,),
    count_ops: bool = False,
    sparse_representation: bool = False,
) -> Any:
    """`jacve` of a jaxpr at a point: a list with one entry per output.

    Args:
        jaxpr: the program, open.
        order: as in `jacve`.
        consts: values of its constants.
        *args: values of its inputs.
        has_aux: as in `jacve`.
        argnums: as in `jacve`.
        count_ops: as in `jacve`.
        sparse_representation: as in `jacve`.
    """
    program = ClosedJaxpr(jaxpr, list(consts))

    def function(*operands: Any) -> list[Any]:
        return evaluate(program, operands)

    native = elimination.jacve(
        function, order, _one_or_several(argnums), has_aux, count_ops, sparse_representation
    )
    return native(*args)


def tree_allclose(tree1: Any, tree2: Any, equal_nan: bool = False) -> Any:
    """Whether the leaves of two pytrees are close: a JAX boolean, so that it can be asked inside `jit`.

    Raises:
        ValueError: the trees have different structures.
    """
    close = jax.tree.map(
        lambda a, b: jnp.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=equal_nan), tree1, tree2
    )
    return jnp.all(jnp.array(jax.tree.leaves(close)))


def _one_or_several(argnums: Sequence[int] | int) -> Any:
    """One argument has no tuple around its block there."""
    if isinstance(argnums, int):
        return argnums
    return argnums[0] if len(argnums) == 1 else tuple(argnums)


def _in_tuple(tree: Any) -> Any:
    is_single = isinstance(tree, StructuredJacobian) or jax.tree_util.all_leaves([tree])
    return (tree,) if is_single else tree

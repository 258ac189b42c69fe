"""The ancestor's interface: the same names, arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import ClosedJaxpr, Jaxpr, evaluate
from chainrule.elimination._api import Argnums, linearization
from chainrule.elimination._choose import OrderLike
from chainrule.elimination._counting import published_counts
from chainrule.elimination._linearize import Linearization


def jacve(
    fun: Callable[..., Any],
    order: OrderLike = "auto",
    argnums: Argnums = (0,),
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of `fun` by vertex elimination.

    Args:
        fun: a function of pytrees that JAX can trace.
        order: `"forward"`, `"reverse"`, `"markowitz"`, `"auto"`, or vertex numbers (an equation of the
            jaxpr each, from 1).
        argnums: which positional arguments to differentiate with respect to.
        has_aux: return `(value, jacobian)` instead of the Jacobian alone.
        count_ops: return `(result, counts)`, with `num_muls`, `num_adds` and `order_counts`, by the
            ancestor's convention, in which dead ends count too; `linearization(...).counts` has what this
            package does.
        sparse_representation: leave the blocks as `StructuredJacobian`s.

    Returns:
        A function of `fun`'s arguments, whose result is arranged like that of `jax.jacrev(fun, argnums)`.
    """
    linearized = linearization(fun, argnums, order=order)

    @wraps(fun)
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        found = linearized(*args, **kwargs)
        result = found.blocks if sparse_representation else found.jacobian
        if has_aux:
            result = (found.value, result)
        return (result, _counts(found, order)) if count_ops else result

    return jacobian_of


_PURE = {"forward": "forward", "fwd": "forward", "reverse": "reverse", "rev": "reverse"}


def _counts(found: Linearization, order: OrderLike) -> dict[str, Any]:
    """Counted as the ancestor counts: also what is multiplied on ways that lead nowhere."""
    pure = _PURE.get(order) if isinstance(order, str) else None
    counts = published_counts(found.graph, pure or found.order)
    return {
        "num_muls": counts.multiplications,
        "num_adds": counts.additions,
        "order_counts": list(counts.per_vertex),
    }


def vertex_elimination_jaxpr(
    jaxpr: Jaxpr,
    order: OrderLike,
    consts: Sequence[Any],
    *args: Any,
    argnums: Argnums = (0,),
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
) -> Any:
    """`jacve` for a jaxpr: a flat list of outputs, differentiated with respect to flat arguments.

    Args:
        jaxpr: the program, open.
        order: as in `jacve`.
        consts: values of the program's captured constants.
        *args: values of its inputs.
        argnums: as in `jacve`.
        has_aux: as in `jacve`.
        count_ops: as in `jacve`.
        sparse_representation: as in `jacve`.
    """
    program = ClosedJaxpr(jaxpr, list(consts))

    def function(*operands: Any) -> list[Any]:
        return evaluate(program, operands)

    return jacve(
        function, order, argnums, has_aux=has_aux, count_ops=count_ops,
        sparse_representation=sparse_representation,
    )(*args)  # fmt: skip


def tree_allclose(
    first: Any, second: Any, *, equal_nan: bool = False, rtol: float = 1e-5, atol: float = 1e-8
) -> bool:
    """Whether two pytrees have the same structure and close leaves."""
    trees: list[Any] = [jax.tree.structure(first), jax.tree.structure(second)]
    if trees[0] != trees[1]:
        return False
    close = jax.tree.map(
        lambda a, b: jnp.shape(a) == jnp.shape(b)
        and bool(jnp.allclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)),
        first, second,
    )  # fmt: skip
    return all(jax.tree.leaves(close))

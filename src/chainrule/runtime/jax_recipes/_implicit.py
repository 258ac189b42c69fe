"""A JAX function that is defined by an equation, differentiated by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np

from chainrule._errors import DefinitionError
from chainrule._partition import Template, seal, unseal
from chainrule.runtime.jax_recipes._programs import is_inexact, split

Leaves = list[jax.Array]


def jax_implicit(
    solve: Callable[[Any], Any],
    residual: Callable[[Any, Any], Any],
    *,
    solver: lx.AbstractLinearSolver | None = None,
    solve_linear: Callable[[Any, Any, Any], Any] | None = None,
    solve_transpose: Callable[[Any, Any, Any], Any] | None = None,
) -> Callable[[Any], Any]:
    """The function `inputs -> outputs` with residual(inputs, outputs) = 0, differentiable to any order.

    `solve` is never differentiated: with A = ∂r/∂outputs and B = ∂r/∂inputs, tangents follow from
    A ẏ = −B ẋ and cotangents from the transposed system. It may loop until convergence.

    Args:
        solve: finds the outputs, a traceable function of nested data.
        residual: zero at the solution, with as many elements as the floating-point outputs.
        solver: how lineax solves the linear systems; a direct method by default.
        solve_linear: `solve_linear(inputs, outputs, right)` solves A z = right, instead of lineax.
        solve_transpose: the same for Aᵀ; needed for reverse mode when `solve_linear` is given.

    Returns:
        A function for `jax.jit` and the recipes.

    Example:
        >>> root = jax_implicit(
        ...     lambda x: {"y": jnp.sqrt(x["a"])}, lambda x, y: {"r": y["y"] ** 2 - x["a"]})
        >>> float(jax.grad(lambda a: root({"a": a})["y"])(4.0))
        0.25
    """

    def linear_solve(inputs: Any, outputs: Any, matvec: Any, right: Leaves, like: Any) -> Leaves:
        if solve_linear is None:
            # The derivative is taken at the solution, so `matvec` is linear there by construction
            # (`jax.linearize`), and lineax may transpose it for the reverse rule. `like` is the form of its
            # argument: that of the unknowns.
            operator = lx.FunctionLinearOperator(matvec, like)
            chosen = solver or lx.AutoLinearSolver(well_posed=True)
            return lx.linear_solve(operator, right, chosen).value
        back = None
        if solve_transpose is not None:
            back = _on_leaves(partial(solve_transpose, inputs, outputs), outputs)
        forward = _on_leaves(partial(solve_linear, inputs, outputs), residual(inputs, outputs))
        return jax.lax.custom_linear_solve(
            matvec, right, lambda _, b: forward(b), None if back is None else lambda _, b: back(b)
        )

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def solved(template: Template, arrays: tuple[Any, ...]) -> Any:
        return seal(solve(template.join(arrays)))

    # r(x, y(x)) = 0 for all x; its derivative in the direction ẋ is B ẋ + A ẏ = 0, hence A ẏ = −B ẋ. JAX gets
    # the reverse rule by transposing this one: ẏ = −A⁻¹ B ẋ turns into x̄ = −Bᵀ A⁻ᵀ ȳ, one solve with Aᵀ.
    @solved.defjvp
    def solved_jvp(template: Template, primals: Any, tangents: Any) -> Any:
        (arrays,), (moves,) = primals, tangents
        sealed = solved(template, arrays)
        outputs, inputs = unseal(sealed), template.join(arrays)
        state = _Varying(outputs)

        def of_inputs(varying: Leaves) -> Leaves:
            return _Varying(residual(template.join(_Varying(arrays).put(varying)), outputs)).leaves

        def of_state(varying: Leaves) -> Leaves:
            return _Varying(residual(inputs, state.put(varying))).leaves

        given = _Varying(arrays)
        _, push = jax.jvp(of_inputs, (given.leaves,), (given.only(moves),))
        value, matvec = jax.linearize(of_state, state.leaves)
        _require_square(value, state.leaves)
        like = jax.eval_shape(lambda: state.leaves)
        right = [-part for part in push]
        moved = linear_solve(inputs, outputs, matvec, right, like)
        return sealed, _Varying(sealed).tangents(moved)

    return lambda inputs: unseal(_call(solved, inputs))


def _call(solved: Callable[..., Any], inputs: Any) -> Any:
    template, arrays = split(inputs)
    return solved(template, tuple(map(jnp.asarray, arrays)))


def _require_square(residual: Leaves, state: Leaves) -> None:
    rows, columns = (sum(leaf.size for leaf in leaves) for leaves in (residual, state))
    if rows != columns:
        raise DefinitionError(
            f"The residual has {rows} elements for {columns} floating-point outputs: it cannot "
            "determine them.",
            code="residual_size_mismatch",
        )


class _Varying:
    """The floating-point leaves of a tree, and the tree around them."""

    def __init__(self, tree: Any) -> None:
        self._all, self._structure = jax.tree_util.tree_flatten(tree)
        self._varies = [hasattr(leaf, "dtype") and is_inexact(leaf) for leaf in self._all]

    @property
    def leaves(self) -> Leaves:
        return [leaf for leaf, varies in zip(self._all, self._varies, strict=True) if varies]

    def put(self, leaves: Leaves) -> Any:
        """The tree with other values of its floating-point leaves."""
        new = iter(leaves)
        merged = [next(new) if v else leaf for leaf, v in zip(self._all, self._varies, strict=True)]
        return jax.tree_util.tree_unflatten(self._structure, merged)

    def only(self, tree: Any) -> Leaves:
        """The leaves of a tree of the same structure that belong to floating-point ones."""
        pairs = zip(jax.tree_util.tree_leaves(tree), self._varies, strict=True)
        return [leaf for leaf, varies in pairs if varies]

    def tangents(self, leaves: Leaves) -> Any:
        """The tree of tangents: exact leaves have the tangent type that JAX wants of them."""
        new = iter(leaves)
        merged = [
            next(new) if v else np.zeros(leaf.shape, jax.dtypes.float0)
            for leaf, v in zip(self._all, self._varies, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self._structure, merged)


def _on_leaves(solve: Callable[[Any], Any], like: Any) -> Callable[[Leaves], Leaves]:
    """A user's solve between named trees, as one between lists of leaves."""
    given = _Varying(like)
    return lambda right: _Varying(solve(given.put(right))).leaves

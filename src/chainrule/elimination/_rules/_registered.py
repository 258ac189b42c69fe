"""Local Jacobians that other packages bring for primitives of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from chainrule.elimination._rules._site import Edge, LocalJacobian, Rule, Site
from chainrule.elimination._structure import Structure, dense_term, structure_of

Partials = Callable[
    [Mapping[str, Any], Sequence[Any], Sequence[Any], Sequence[int]], Mapping[Edge, Any]
]
"""`partials(params, operands, results, wanted)` → `{(result, operand): dense block}`."""

REGISTERED_RULES: dict[str, Rule] = {}


def register_partials(primitive: str, partials: Partials) -> None:
    """Say how to compute the local Jacobian of a primitive, all blocks in one go.

    Meant for primitives whose Jacobian is known better than by sweeping them, such as a call of a
    component that has a Jacobian endpoint.

    Args:
        primitive: its name.
        partials: given the equation's parameters, the values of operands and results, and the positions of
            the operands to differentiate with respect to, returns an array of shape
            `result.shape + operand.shape` for every pair of a floating-point result and a wanted operand.
    """

    def rule(site: Site) -> LocalJacobian:
        structures: dict[Edge, Structure] = {}
        for result in range(len(site.eqn.outvars)):
            if not jnp.issubdtype(site.result(result).dtype, jnp.floating):
                continue
            for operand in site.wanted_operands:
                term = dense_term(site.result_shape(result), site.operand_shape(operand))
                structures[result, operand] = structure_of([term])

        def evaluate(
            operands: Sequence[Any], results: Sequence[Any]
        ) -> dict[Edge, tuple[Any, ...]]:
            found = partials(site.eqn.params, operands, results, site.wanted_operands)
            return {
                edge: (jnp.reshape(found[edge], structure.terms[0].stored_shape),)
                for edge, structure in structures.items()
            }

        return LocalJacobian(structures, evaluate)

    REGISTERED_RULES[primitive] = rule

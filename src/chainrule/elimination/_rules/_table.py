"""All rules by primitive, and those that other packages register for primitives of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from chainrule.elimination._rules._convolution import CONVOLUTION_RULES
from chainrule.elimination._rules._elementwise import ELEMENTWISE_RULES
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._inner import BRANCH_RULES, CALL_RULES
from chainrule.elimination._rules._moving import MOVING_RULES, PLACING_RULES
from chainrule.elimination._rules._site import Edge, LocalJacobian, Rule, Site, is_complex
from chainrule.elimination._rules._sums import SUMMING_RULES
from chainrule.elimination._structure import Structure, dense_term, structure_of

Partials = Callable[
    [Mapping[str, Any], Sequence[Any], Sequence[Any], Sequence[int]], Mapping[Edge, Any]
]
"""`partials(params, operands, results, wanted)` → `{(result, operand): dense block}`."""

_RULES: dict[str, Rule] = {
    **ELEMENTWISE_RULES,
    **MOVING_RULES,
    **PLACING_RULES,
    **SUMMING_RULES,
    **CONVOLUTION_RULES,
    **CALL_RULES,
    **BRANCH_RULES,
}
_registered: dict[str, Rule] = {}


def has_rule(site: Site) -> bool:
    """Whether the equation has a rule of its own."""
    return _rule(site) is not None


def local_jacobian(site: Site) -> LocalJacobian:
    """The partials of an equation with respect to its wanted operands."""
    rule = _rule(site)
    return fallback(site) if rule is None else rule(site)


def _rule(site: Site) -> Rule | None:
    # The rules are those of real functions. A function of complex numbers need not be differentiable as one;
    # `fallback` sees it as a function of pairs of real numbers, which has a derivative all the same.
    if _touches_complex(site):
        return None
    name = site.eqn.primitive.name
    return _registered.get(name) or _RULES.get(name)


def _touches_complex(site: Site) -> bool:
    wanted = (site.eqn.invars[p] for p in site.wanted_operands)
    return any(is_complex(atom.aval) for atom in (*wanted, *site.eqn.outvars))


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

    _registered[primitive] = rule

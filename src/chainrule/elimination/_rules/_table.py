"""All rules by primitive, and those that other packages register for primitives of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from chainrule.elimination._rules._convolution import CONVOLUTION_RULES
from chainrule.elimination._rules._elementwise import ELEMENTWISE_RULES
from chainrule.elimination._rules._equation import Edge, Equation, LocalJacobian, Rule, is_complex
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._inner import BRANCH_RULES, CALL_RULES
from chainrule.elimination._rules._moving import MOVING_RULES, PLACING_RULES
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


def has_rule(equation: Equation) -> bool:
    """Whether the equation has a rule of its own."""
    return _rule(equation) is not None


def local_jacobian(equation: Equation) -> LocalJacobian:
    """The partials of an equation with respect to its wanted operands."""
    rule = _rule(equation)
    return fallback(equation) if rule is None else rule(equation)


def _rule(equation: Equation) -> Rule | None:
    # The rules are those of real functions. A function of complex numbers need not be differentiable as one;
    # `fallback` sees it as a function of pairs of real numbers, which has a derivative all the same.
    if _touches_complex(equation):
        return None
    name = equation.eqn.primitive.name
    return _registered.get(name) or _RULES.get(name)


def _touches_complex(equation: Equation) -> bool:
    wanted = (equation.eqn.invars[p] for p in equation.wanted_operands)
    return any(is_complex(atom.aval) for atom in (*wanted, *equation.eqn.outvars))


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

    def rule(equation: Equation) -> LocalJacobian:
        structures: dict[Edge, Structure] = {}
        for result in range(len(equation.eqn.outvars)):
            if not jnp.issubdtype(equation.result(result).dtype, jnp.floating):
                continue
            for operand in equation.wanted_operands:
                term = dense_term(equation.result_shape(result), equation.operand_shape(operand))
                structures[result, operand] = structure_of([term])

        def evaluate(
            operands: Sequence[Any], results: Sequence[Any]
        ) -> dict[Edge, tuple[Any, ...]]:
            found = partials(equation.eqn.params, operands, results, equation.wanted_operands)
            return {
                edge: (jnp.reshape(found[edge], structure.terms[0].stored_shape),)
                for edge, structure in structures.items()
            }

        return LocalJacobian(structures, evaluate)

    _registered[primitive] = rule

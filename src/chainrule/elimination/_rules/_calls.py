"""Functions with a derivative rule of their own: `custom_jvp` and `custom_vjp`.

The user's rule is a linear program in the tangents (or cotangents). Its Jacobian, found by elimination,
is the Jacobian of the call. So an elementwise `relu` gives a diagonal without a declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._inner import InnerJacobian
from chainrule.elimination._rules._linear import traced_rule, why_not_linear
from chainrule.elimination._rules._site import Edge, LocalJacobian, Rule, Site
from chainrule.elimination._structure import Structure, structure_of


def _custom_jvp(site: Site) -> LocalJacobian:
    inner = _rule_as_jacobian(site)
    if isinstance(inner, LocalJacobian):
        return inner
    wanted = site.wanted_operands
    structures = {(r, wanted[c]): s for (r, c), s in inner.structures.items()}

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        blocks = inner.evaluate([*operands, *_no_directions(site, wanted, ())])
        return {(r, wanted[c]): block.values for (r, c), block in blocks.items()}

    return LocalJacobian(structures, evaluate)


def _custom_vjp(site: Site) -> LocalJacobian:
    inner = _rule_as_jacobian(site)
    if isinstance(inner, LocalJacobian):
        return inner
    wanted = site.wanted_operands
    # The rule maps cotangents of the results (c) to cotangents of the operands (r). Its Jacobian is the
    # transpose of the call's, so the places change sides: (r, c) there is (result c, operand r) here. Nothing
    # is conjugated: complex values are pairs of real numbers by now.
    structures = {(c, wanted[r]): _transposed(s) for (r, c), s in inner.structures.items()}

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        blocks = inner.evaluate([*operands, *_no_directions(site, (), range(len(results)))])
        return {
            (c, wanted[r]): _transposed_values(inner.structures[r, c], block.values)
            for (r, c), block in blocks.items()
        }

    return LocalJacobian(structures, evaluate)


def _rule_as_jacobian(site: Site) -> InnerJacobian | LocalJacobian:
    """The Jacobian of the rule in its directions; dense partials where that is not one of the call."""
    if not all(
        jnp.issubdtype(site.result(k).dtype, jnp.floating) for k in range(len(site.eqn.outvars))
    ):
        return fallback(site)
    program, directions = traced_rule(site.eqn, site.wanted_operands)
    is_linear = why_not_linear(program, directions) is None
    return InnerJacobian(program, directions) if is_linear else fallback(site)


def _no_directions(site: Site, operands: Sequence[int], results: Sequence[int]) -> list[Any]:
    """A linear program has the same Jacobian everywhere: it is taken at 0."""
    avals = [*(site.operand(p) for p in operands), *(site.result(k) for k in results)]
    return [jnp.zeros(aval.shape, aval.dtype) for aval in avals]


def _transposed(structure: Structure) -> Structure:
    return structure_of([term.transposed()[0] for term in structure.terms])


def _transposed_values(structure: Structure, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        None if value is None else value.transpose(term.transposed()[1])
        for term, value in zip(structure.terms, values, strict=True)
    )


CALL_RULES: dict[str, Rule] = {
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "custom_vjp_call_jaxpr": _custom_vjp,
}

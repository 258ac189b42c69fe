"""Functions with a derivative rule of their own: `custom_jvp` and `custom_vjp`.

The user's rule is a linear program in the tangents (or cotangents). Its Jacobian, found by elimination,
is the Jacobian of the call; so an elementwise `relu` gives a diagonal without anybody saying so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._jaxpr import CALLS, ClosedJaxpr, Literal, as_function, inline_calls, trace_avals
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._inner import InnerJacobian
from chainrule.elimination._rules._site import Edge, LocalJacobian, Rule, Site
from chainrule.elimination._structure import Structure, structure_of

__all__ = ["CALL_RULES"]


def _custom_jvp(site: Site) -> LocalJacobian:
    if not _is_real(site):
        return fallback(site)
    wanted = site.wanted_operands

    def push(operands: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        return jax.jvp(_restricted(site, operands), [operands[p] for p in wanted], list(tangents))[
            1
        ]

    inner = _Linear(site, push, [site.eqn.invars[p] for p in wanted])
    structures = {(r, wanted[c]): s for (r, c), s in inner.structures.items()}

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        found = inner.evaluate(operands)
        return {(r, wanted[c]): values for (r, c), values in found.items()}

    return LocalJacobian(structures, evaluate)


def _custom_vjp(site: Site) -> LocalJacobian:
    if not _is_real(site):
        return fallback(site)
    wanted = site.wanted_operands

    def pull(operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        _, back = jax.vjp(_restricted(site, operands), *(operands[p] for p in wanted))
        return list(back(list(cotangents)))

    inner = _Linear(site, pull, site.eqn.outvars)
    structures = {(c, wanted[r]): _transposed(s) for (r, c), s in inner.structures.items()}

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        found = inner.evaluate(operands)
        return {
            (c, wanted[r]): _transposed_values(inner.structures[r, c], values)
            for (r, c), values in found.items()
        }

    return LocalJacobian(structures, evaluate, inner.is_linear)


def _is_real(site: Site) -> bool:
    return all(
        jnp.issubdtype(site.result(k).dtype, jnp.floating) for k in range(len(site.eqn.outvars))
    )


def _restricted(site: Site, operands: Sequence[Any]) -> Any:
    apply = as_function(site.eqn)

    def function(*inputs: Any) -> list[Any]:
        full = list(operands)
        for position, value in zip(site.wanted_operands, inputs, strict=True):
            full[position] = value
        return apply(*full)

    return function


class _Linear:
    """The Jacobian of a function that is linear in its directions, at any direction."""

    def __init__(self, site: Site, function: Any, directions: Sequence[Any]) -> None:
        count = len(site.eqn.invars)
        self._directions = [var.aval for var in directions]
        avals = [*(atom.aval for atom in site.eqn.invars), *self._directions]
        program = trace_avals(lambda *v: function(v[:count], v[count:]), avals)
        self._avals = avals
        self._inner = InnerJacobian(program, range(count, len(avals)))
        self.structures = self._inner.structures

    @property
    def is_linear(self) -> bool:
        """Whether the Jacobian is the same at all directions, as far as can be told."""
        if not self._inner.has_all_rules:
            return True
        program = trace_avals(lambda *v: jax.tree.leaves(self._values(v)), self._avals)
        program = inline_calls(program, CALLS)
        directions = program.jaxpr.invars[-len(self._directions) :]
        return _needed(program).isdisjoint(directions)

    def evaluate(self, operands: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        at = [jnp.zeros(aval.shape, aval.dtype) for aval in self._directions]
        return self._values([*operands, *at])

    def _values(self, inputs: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        return {place: block.values for place, block in self._inner.evaluate(inputs).items()}


def _needed(program: ClosedJaxpr) -> set[Any]:
    """The variables that the results of a program depend on."""
    needed = {atom for atom in program.jaxpr.outvars if not isinstance(atom, Literal)}
    for eqn in reversed(program.jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
    return needed


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

"""`cond` and `switch`: elimination inside every branch, and at run time only inside the one that is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from chainrule._jaxpr import subprograms
from chainrule.elimination._blocks import Block, Cut, dense, entries_of, reached, scaled
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._inner import InnerJacobian
from chainrule.elimination._rules._site import Edge, LocalJacobian, Rule, Site, is_complex
from chainrule.elimination._structure import Structure, Term, dense_term, structure_of


def _cond(site: Site) -> LocalJacobian:
    """`cond(index, *operands)`; the operands of a branch are those of the equation without the first."""
    if any(is_complex(atom.aval) for atom in (*site.eqn.invars, *site.eqn.outvars)):
        return fallback(site)
    wanted = site.wanted_operands
    branches = [
        InnerJacobian(sub.program, [p - 1 for p in wanted]) for sub in subprograms(site.eqn)
    ]
    targets: dict[Edge, Term] = {}
    for result in range(len(site.eqn.outvars)):
        for column, position in enumerate(wanted):
            found = [branch.structures.get((result, column)) for branch in branches]
            present = [structure for structure in found if structure is not None]
            if present:
                targets[result, position] = _common_term(present)

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        runs = [_taken(site, branch, targets) for branch in branches]
        values = lax.switch(operands[0], runs, *operands[1:])
        return {edge: (value,) for edge, value in zip(targets, values, strict=True)}

    structures = {edge: structure_of([term]) for edge, term in targets.items()}
    reasons = [branch.not_linear for branch in branches if branch.not_linear is not None]
    return LocalJacobian(structures, evaluate, reasons[0] if reasons else None)


def _common_term(structures: Sequence[Structure]) -> Term:
    """One term that can hold the block of every branch."""
    terms = [term for structure in structures for term in structure.terms]
    first = terms[0]
    if all(term.place == first.place for term in terms) and all(
        len(structure.terms) == 1 for structure in structures
    ):
        return first.with_stored(range(len(first.sizes)))
    return dense_term(first.out_shape, first.in_shape)


def _taken(
    site: Site, branch: InnerJacobian, targets: dict[Edge, Term]
) -> Callable[..., list[Any]]:
    """The values of all edges, from the elimination of one branch."""
    columns = {position: column for column, position in enumerate(site.wanted_operands)}

    def run(*operands: Any) -> list[Any]:
        blocks = branch.evaluate(operands)
        values = []
        for (result, position), term in targets.items():
            dtype = site.result(result).dtype
            block = blocks.get((result, columns[position]))
            values.append(_fitted(block, term, dtype))
        return values

    return run


def _fitted(block: Block | None, term: Term, dtype: Any) -> Cut:
    """The block of a branch in the term that all branches share; what the branch does not have is cut."""
    if block is None:
        return Cut(jnp.zeros(term.stored_shape, dtype), (jnp.zeros(term.stored_shape, bool),))
    numbers = [_placed(each, term, dtype) for each in (block, reached(block, dtype))]
    return Cut(numbers[0], (numbers[1] > 0,))


def _placed(block: Block, term: Term, dtype: Any) -> Any:
    own = block.structure.terms
    if len(own) == 1 and own[0].place == term.place:
        entries = scaled(entries_of(block.values[0]), own[0].coefficient, dtype)
        return lax.broadcast_in_dim(entries, term.sizes, own[0].stored)
    return dense(block, dtype).reshape(term.stored_shape)


BRANCH_RULES: dict[str, Rule] = {"cond": _cond}

"""Equations that contain programs: the Jacobian of the program inside is found by elimination.

A function with a derivative rule of its own (`custom_jvp`, `custom_vjp`) has a linear program in the
tangents (or cotangents). The Jacobian of that program is the Jacobian of the call. So an elementwise `relu`
gives a diagonal without a declaration. Of `cond` and `switch` every branch is eliminated, and at run time
only the one that is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from chainrule._jaxpr import ClosedJaxpr, subprograms
from chainrule.elimination._blocks import Block, PartlyCut, dense, entries_of, reached, scaled
from chainrule.elimination._rules._equation import Edge, Equation, LocalJacobian, Rule, is_complex
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._rules._linear import traced_rule, why_not_linear
from chainrule.elimination._structure import Structure, Term, dense_term, structure_of


class InnerJacobian:
    """The blocks of a program's Jacobian, as structures now and with values later.

    Attributes:
        structures: (output, position in `inputs`) → structure, for the blocks that are not zero.
        not_linear: see `LocalJacobian`.
    """

    def __init__(self, program: ClosedJaxpr, inputs: Sequence[int]) -> None:
        # A cycle: the graph is built from rules, and these rules build the graph of a program inside.
        from chainrule.elimination._eliminate import accumulate, result_structures
        from chainrule.elimination._flatten import flatten
        from chainrule.elimination._graph import build_graph

        self._graph = build_graph(flatten(program), inputs)
        reasons = (local.not_linear for local in self._graph.partials.values())
        self.not_linear = next((reason for reason in reasons if reason is not None), None)
        self._order = tuple(reversed(self._graph.required))
        self._accumulate = accumulate
        found = result_structures(self._graph, self._order)
        self.structures = {place: s for place, s in found.items() if not s.is_zero}

    def evaluate(self, operands: Sequence[Any]) -> dict[Edge, Block]:
        """The blocks at a point."""
        _, blocks = self._accumulate(self._graph, self._order, operands)
        return {place: blocks[place] for place in self.structures}


# --- custom_jvp and custom_vjp ------------------------------------------------------------------


def _custom_jvp(equation: Equation) -> LocalJacobian:
    inner = _rule_as_jacobian(equation)
    if isinstance(inner, LocalJacobian):
        return inner
    wanted = equation.wanted_operands
    structures = {(r, wanted[c]): s for (r, c), s in inner.structures.items()}

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        blocks = inner.evaluate([*operands, *_no_directions(equation, wanted, ())])
        return {(r, wanted[c]): block.values for (r, c), block in blocks.items()}

    return LocalJacobian(structures, evaluate)


def _custom_vjp(equation: Equation) -> LocalJacobian:
    inner = _rule_as_jacobian(equation)
    if isinstance(inner, LocalJacobian):
        return inner
    wanted = equation.wanted_operands
    # The rule maps cotangents of the results (c) to cotangents of the operands (r). Its Jacobian is the
    # transpose of the call's, so the places change sides: (r, c) there is (result c, operand r) here. Nothing
    # is conjugated: complex values are pairs of real numbers by now.
    structures = {(c, wanted[r]): _transposed(s) for (r, c), s in inner.structures.items()}

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        blocks = inner.evaluate([*operands, *_no_directions(equation, (), range(len(results)))])
        return {
            (c, wanted[r]): _transposed_values(inner.structures[r, c], block.values)
            for (r, c), block in blocks.items()
        }

    return LocalJacobian(structures, evaluate)


def _rule_as_jacobian(equation: Equation) -> InnerJacobian | LocalJacobian:
    """The Jacobian of the rule in its directions; dense partials where that is not one of the call."""
    if not all(
        jnp.issubdtype(equation.result(k).dtype, jnp.floating)
        for k in range(len(equation.eqn.outvars))
    ):
        return fallback(equation)
    program, directions = traced_rule(equation.eqn, equation.wanted_operands)
    is_linear = why_not_linear(program, directions) is None
    return InnerJacobian(program, directions) if is_linear else fallback(equation)


def _no_directions(
    equation: Equation, operands: Sequence[int], results: Sequence[int]
) -> list[Any]:
    """A linear program has the same Jacobian everywhere: it is taken at 0."""
    avals = [*(equation.operand(p) for p in operands), *(equation.result(k) for k in results)]
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


# --- cond and switch ----------------------------------------------------------------------------


def _cond(equation: Equation) -> LocalJacobian:
    """`cond(index, *operands)`; the operands of a branch are those of the equation without the first."""
    if any(is_complex(atom.aval) for atom in (*equation.eqn.invars, *equation.eqn.outvars)):
        return fallback(equation)
    wanted = equation.wanted_operands
    branches = [
        InnerJacobian(sub.program, [p - 1 for p in wanted]) for sub in subprograms(equation.eqn)
    ]
    targets: dict[Edge, Term] = {}
    for result in range(len(equation.eqn.outvars)):
        for column, position in enumerate(wanted):
            found = [branch.structures.get((result, column)) for branch in branches]
            present = [structure for structure in found if structure is not None]
            if present:
                targets[result, position] = _common_term(present)

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        runs = [_taken(equation, branch, targets) for branch in branches]
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
    equation: Equation, branch: InnerJacobian, targets: dict[Edge, Term]
) -> Callable[..., list[Any]]:
    """The values of all edges, from the elimination of one branch."""
    columns = {position: column for column, position in enumerate(equation.wanted_operands)}

    def run(*operands: Any) -> list[Any]:
        blocks = branch.evaluate(operands)
        values = []
        for (result, position), term in targets.items():
            dtype = equation.result(result).dtype
            block = blocks.get((result, columns[position]))
            values.append(_fitted(block, term, dtype))
        return values

    return run


def _fitted(block: Block | None, term: Term, dtype: Any) -> PartlyCut:
    """The block of a branch in the term that all branches share; what the branch does not have is cut."""
    if block is None:
        return PartlyCut(jnp.zeros(term.stored_shape, dtype), (jnp.zeros(term.stored_shape, bool),))
    numbers = [_placed(each, term, dtype) for each in (block, reached(block, dtype))]
    return PartlyCut(numbers[0], (numbers[1] > 0,))


def _placed(block: Block, term: Term, dtype: Any) -> Any:
    own = block.structure.terms
    if len(own) == 1 and own[0].place == term.place:
        entries = scaled(entries_of(block.values[0]), own[0].coefficient, dtype)
        return lax.broadcast_in_dim(entries, term.sizes, own[0].stored)
    return dense(block, dtype).reshape(term.stored_shape)


BRANCH_RULES: dict[str, Rule] = {"cond": _cond}

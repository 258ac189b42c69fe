"""Reductions and contractions: many operand entries make one result entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from chainrule.elimination._rules._equation import (
    NOTHING,
    Edge,
    Equation,
    LocalJacobian,
    Rule,
    constant,
    selecting,
    term_structure,
    transposition,
)
from chainrule.elimination._structure import Axis, Structure


def _reduced(equation: Equation, *, stored: bool) -> Structure | None:
    sizes = equation.operand_shape(0)
    axes = {d % len(sizes) for d in equation.eqn.params["axes"]}
    out_axes = [Axis.of(d) for d in range(len(sizes)) if d not in axes]
    in_axes = [Axis.of(d) for d in range(len(sizes))]
    # z[r] = Σ_s x[r, s]: ∂z[r]/∂x[r', s] = [r = r'], a diagonal in what is kept and a 1 for every s. The
    # variables of the kept axes come first because they appear in the output first.
    order = [d for d in range(len(sizes)) if d not in axes] + sorted(axes)
    found = term_structure(
        equation.result_shape(), sizes, sizes, out_axes, in_axes, stored=order if stored else None
    )
    return None if found is None else found[0]


def _reduce_sum(equation: Equation) -> LocalJacobian:
    structure = _reduced(equation, stored=False)
    return NOTHING if structure is None else constant({(0, 0): structure})


def _reduce_extremum(equation: Equation) -> LocalJacobian:
    """Entries that attain the extremum share the derivative, as JAX has it."""
    structure = _reduced(equation, stored=True)
    if structure is None:
        return NOTHING
    axes = tuple(equation.eqn.params["axes"])
    rank = len(equation.operand_shape(0))
    kept = [d for d in range(rank) if d not in axes]

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        # Where several entries attain the extremum, JAX gives each an equal share; the shares add up to one,
        # so that moving all of them together moves the result by as much.
        hit = (operands[0] == jnp.expand_dims(results[0], axes)).astype(results[0].dtype)
        share = hit / hit.sum(axis=axes, keepdims=True)
        value = share.transpose([*kept, *sorted(axes)])
        return {(0, 0): (value.reshape(structure.terms[0].stored_shape),)}

    return selecting(LocalJacobian({(0, 0): structure}, evaluate))


def _cumsum(equation: Equation) -> LocalJacobian:
    """z[b, i] = Σ_j t[i, j] · x[b, j] with a triangle t of ones: the same one along every other axis."""
    shape, axis = equation.operand_shape(0), equation.eqn.params["axis"]
    rank, length = len(shape), shape[axis]
    out_axes = [Axis.of(d) for d in range(rank)]
    in_axes = [Axis.of(rank if d == axis else d) for d in range(rank)]
    found = term_structure(shape, shape, [*shape, length], out_axes, in_axes, stored=[axis, rank])
    if found is None:
        return NOTHING
    structure, order = found

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        # t[i, j] = 1 for j ≤ i. Summing from the other end is the transposed triangle (j ≥ i), and so is a
        # value that is stored as (j, i): two reasons to transpose cancel.
        triangle = jnp.tri(length, dtype=results[0].dtype)
        is_upper = equation.eqn.params["reverse"] ^ (order != (axis, rank))
        value = triangle.T if is_upper else triangle
        return {(0, 0): (value.reshape(structure.terms[0].stored_shape),)}

    return selecting(LocalJacobian({(0, 0): structure}, evaluate))


def _dot_general(equation: Equation) -> LocalJacobian:
    """z[b, m, n] = Σ_k x[b, m, k] · y[b, k, n]; ∂z/∂x is y, repeated along a diagonal in m."""
    structures: dict[Edge, Structure] = {}
    layouts = {}
    for position in equation.wanted_operands:
        found = _dot_edge(equation, position)
        if found is not None:
            structures[0, position], layouts[position] = found

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        values = {}
        for position, order in layouts.items():
            other = operands[1 - position].astype(results[0].dtype)
            shape = structures[0, position].terms[0].stored_shape
            values[0, position] = (other.transpose(order).reshape(shape),)
        return values

    return LocalJacobian(structures, evaluate)


def _dot_edge(equation: Equation, position: int) -> tuple[Structure, list[int]] | None:
    contracting, batch = equation.eqn.params["dimension_numbers"]
    shapes = equation.operand_shape(0), equation.operand_shape(1)
    # One loop per batch pair, per free axis of either operand, and per contracted pair.
    sizes: list[int] = []
    loops: list[dict[int, int]] = [{}, {}]

    def loop(*places: tuple[int, int]) -> None:
        for side, axis in places:
            loops[side][axis] = len(sizes)
        side, axis = places[0]
        sizes.append(shapes[side][axis])

    for pair in zip(*batch, strict=True):
        loop((0, pair[0]), (1, pair[1]))
    for side in (0, 1):
        for axis in range(len(shapes[side])):
            if axis not in (*contracting[side], *batch[side]):
                loop((side, axis))
    out_rank = len(sizes)
    for pair in zip(*contracting, strict=True):
        loop((0, pair[0]), (1, pair[1]))

    # ∂z[b, m, n]/∂x[b', m', k] = [b = b'] [m = m'] y[b, k, n]: diagonal in b and m, which x and z share; the
    # value is the other operand, stored over its own loops. It does not depend on m, so nothing is stored for
    # m. The same holds with x and y exchanged. Products are bilinear, so nothing is conjugated.
    own, other = loops[position], loops[1 - position]
    out_axes = [Axis.of(v) for v in range(out_rank)]
    in_axes = [Axis.of(own[axis]) for axis in range(len(own))]
    held = [other[axis] for axis in range(len(other))]
    found = term_structure(
        equation.result_shape(), shapes[position], sizes, out_axes, in_axes, stored=held
    )
    if found is None:
        return None
    structure, order = found
    return structure, transposition(held, order)


SUMMING_RULES: dict[str, Rule] = {
    "reduce_sum": _reduce_sum,
    "reduce_max": _reduce_extremum,
    "reduce_min": _reduce_extremum,
    "cumsum": _cumsum,
    "dot_general": _dot_general,
}

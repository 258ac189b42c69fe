"""Primitives that only move entries: each result entry is one operand entry, or a fill value.

Their partials have no values. Written as: result position and operand position as functions of the same
loop variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule._jaxpr import JaxprEqn, bind_equation
from chainrule.elimination._rules._equation import (
    NOTHING,
    Edge,
    Equation,
    LocalJacobian,
    Rule,
    constant,
    term_structure,
)
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._structure import Axis, Structure, Table


def _move(
    equation: Equation, sizes: Sequence[int], out_axes: Sequence[Axis], in_axes: Sequence[Axis],
    *, result: int = 0, operand: int = 0,
) -> dict[Edge, Structure]:  # fmt: skip
    found = term_structure(
        equation.result_shape(result), equation.operand_shape(operand), sizes, out_axes, in_axes,
        index_map=True,
    )  # fmt: skip
    return {} if found is None else {(result, operand): found[0]}


def _loops(sizes: Sequence[int]) -> list[Axis]:
    return [Axis.of(v) for v in range(len(sizes))]


def _reshape(equation: Equation) -> LocalJacobian:
    if equation.eqn.params.get("dimensions") is not None:
        return _probe(equation)
    digits = _common_digits(equation.operand_shape(0), equation.result_shape())
    if digits is None:
        return _probe(equation)
    sizes, in_groups, out_groups = digits
    out_axes, in_axes = _spell(out_groups, sizes), _spell(in_groups, sizes)
    return constant(_move(equation, sizes, out_axes, in_axes))


def _common_digits(
    first: Sequence[int], second: Sequence[int]
) -> tuple[list[int], list[list[int]], list[list[int]]] | None:
    """Loop sizes whose products give the lengths of both shapes, and which loops make which axis."""
    # A reshape keeps the flat index. Written in a number system whose digits multiply up to the axes of both
    # shapes, the flat index has the same digits on both sides: (6, 4) and (3, 8) share (3, 2, 4), where 6 =
    # 3·2 and 8 = 2·4. Where the next two lengths do not divide each other there is no such system.
    sizes: list[int] = []
    groups: tuple[list[list[int]], list[list[int]]] = ([[] for _ in first], [[] for _ in second])
    rest = [list(first), list(second)]
    at = [0, 0]
    while True:
        for side in (0, 1):
            while at[side] < len(rest[side]) and rest[side][at[side]] == 1:
                at[side] += 1
        if at[0] == len(first) or at[1] == len(second):
            return (sizes, *groups) if at[0] == len(first) and at[1] == len(second) else None
        # Row-major order: the most significant digit comes first, so split from the outside.
        n, m = rest[0][at[0]], rest[1][at[1]]
        step = math.gcd(n, m)
        if step not in (n, m) or step == 0:
            return None
        for side in (0, 1):
            groups[side][at[side]].append(len(sizes))
            rest[side][at[side]] //= step
        sizes.append(step)


def _spell(groups: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[Axis]:
    axes = []
    for group in groups:
        # The least significant digit has stride 1, every other one the product of the sizes of those below
        # it.
        stride, weights = 1, []
        for variable in reversed(group):
            weights.append((variable, stride))
            stride *= sizes[variable]
        axes.append(Axis.sum_of(0, weights))
    return axes


def _without_unit_axes(shape: Sequence[int], dimensions: Sequence[int]) -> list[Axis]:
    """The axes of a shape, where some are at 0 and the others are walked by one loop each, in order."""
    unit = {d % len(shape) for d in dimensions}
    loops = iter(_loops(shape))
    return [Axis() if d in unit else next(loops) for d in range(len(shape))]


def _squeeze(equation: Equation) -> LocalJacobian:
    sizes = equation.result_shape()
    in_axes = _without_unit_axes(equation.operand_shape(0), equation.eqn.params["dimensions"])
    return constant(_move(equation, sizes, _loops(sizes), in_axes))


def _expand_dims(equation: Equation) -> LocalJacobian:
    sizes = equation.operand_shape(0)
    out_axes = _without_unit_axes(equation.result_shape(), equation.eqn.params["dimensions"])
    return constant(_move(equation, sizes, out_axes, _loops(sizes)))


def _broadcast_in_dim(equation: Equation) -> LocalJacobian:
    sizes = equation.result_shape()
    targets = equation.eqn.params["broadcast_dimensions"]
    # An operand axis of length 1 that is stretched is read at 0 for every result: its loop appears in the
    # output only, so that the block is replicated along it. (Transposed, that is a sum.)
    in_axes = [
        Axis.of(d) if length == sizes[d] else Axis()
        for d, length in zip(targets, equation.operand_shape(0), strict=True)
    ]
    return constant(_move(equation, sizes, _loops(sizes), in_axes))


def _transpose(equation: Equation) -> LocalJacobian:
    sizes = equation.operand_shape(0)
    # Result axis r is operand axis permutation[r]; loops are numbered as the operand's axes.
    out_axes = [Axis.of(d) for d in equation.eqn.params["permutation"]]
    return constant(_move(equation, sizes, out_axes, _loops(sizes)))


def _slice(equation: Equation) -> LocalJacobian:
    sizes = equation.result_shape()
    starts = equation.eqn.params["start_indices"]
    strides = equation.eqn.params["strides"] or (1,) * len(starts)
    # z[r] = x[start + stride · r].
    in_axes = [
        Axis.of(d, offset=int(a), stride=int(s))
        for d, (a, s) in enumerate(zip(starts, strides, strict=True))
    ]
    return constant(_move(equation, sizes, _loops(sizes), in_axes))


def _rev(equation: Equation) -> LocalJacobian:
    sizes = equation.result_shape()
    flipped = equation.eqn.params["dimensions"]
    # z[r] = x[n - 1 - r].
    in_axes = [
        Axis.of(d, offset=n - 1, stride=-1) if d in flipped else Axis.of(d)
        for d, n in enumerate(sizes)
    ]
    return constant(_move(equation, sizes, _loops(sizes), in_axes))


def _made_of_parts(axis: str, *, is_stacked: bool = False) -> Rule:
    """The operands lie one after the other along an axis of the result, or each at a place of a new axis."""

    def rule(equation: Equation) -> LocalJacobian:
        structures: dict[Edge, Structure] = {}
        places = _places_of_parts(
            map(equation.operand_shape, range(len(equation.eqn.invars))),
            equation.eqn.params[axis],
            is_stacked=is_stacked,
        )
        for position, (sizes, out_axes) in enumerate(places):
            if equation.wanted[position]:
                structures |= _move(equation, sizes, out_axes, _loops(sizes), operand=position)
        return constant(structures)

    return rule


def _cut_into_parts(axis: str, *, is_stacked: bool = False) -> Rule:
    """The transposed map: the results lie so in the operand."""

    def rule(equation: Equation) -> LocalJacobian:
        structures: dict[Edge, Structure] = {}
        places = _places_of_parts(
            map(equation.result_shape, range(len(equation.eqn.outvars))),
            equation.eqn.params[axis],
            is_stacked=is_stacked,
        )
        for position, (sizes, in_axes) in enumerate(places):
            structures |= _move(equation, sizes, _loops(sizes), in_axes, result=position)
        return constant(structures)

    return rule


def _places_of_parts(
    shapes: Iterable[Sequence[int]], axis: int, *, is_stacked: bool
) -> Iterator[tuple[Sequence[int], list[Axis]]]:
    """The shape of every part, and where its entries are in the whole."""
    start = 0
    for position, sizes in enumerate(shapes):
        places = _loops(sizes)
        if is_stacked:
            places.insert(axis, Axis(position))
        else:
            places[axis] = Axis.of(axis, offset=start)
            start += sizes[axis]
        yield sizes, places


def _tile(equation: Equation) -> LocalJacobian:
    """The operand again and again: one loop over its entries, one over the repetitions, for every axis."""
    shape, repetitions = equation.operand_shape(0), equation.eqn.params["reps"]
    out_axes = [
        Axis.sum_of(0, ((d, 1), (len(shape) + d, length))) for d, length in enumerate(shape)
    ]
    return constant(_move(equation, [*shape, *repetitions], out_axes, _loops(shape)))


def _each_as_it_is(equation: Equation) -> LocalJacobian:
    """As many results as operands, with the same values."""
    structures: dict[Edge, Structure] = {}
    for position in equation.wanted_operands:
        sizes = equation.operand_shape(position)
        structures |= _move(
            equation, sizes, _loops(sizes), _loops(sizes), result=position, operand=position
        )
    return constant(structures)


def _pad(equation: Equation) -> LocalJacobian:
    """`pad(x, fill)`: x moves, with gaps, and may lose its edges; `fill` goes everywhere else."""
    if equation.wanted[1]:
        return fallback(equation)
    sizes, out_axes, in_axes = [], [], []
    # Derivatives that JAX writes have NumPy's integers here.
    config = [tuple(map(int, margins)) for margins in equation.eqn.params["padding_config"]]
    lengths = zip(equation.operand_shape(0), equation.result_shape(), config, strict=True)
    for d, (n, total, (low, _high, interior)) in enumerate(lengths):
        # Entry i lands at low + i·step, if that is inside: 0 ≤ low + i·step ≤ total - 1. So i runs from ⌈-low
        # / step⌉ = -(low // step), or 0, to ⌊(total - 1 - low) / step⌋, or n - 1. A negative `low` cuts.
        step = interior + 1
        first = max(0, -(low // step))
        last = min(n - 1, (total - 1 - low) // step)
        sizes.append(max(0, last - first + 1))
        out_axes.append(Axis.of(d, offset=low + first * step, stride=step))
        in_axes.append(Axis.of(d, offset=first))
    return constant(_move(equation, sizes, out_axes, in_axes))


def _moves_known(equation: Equation) -> bool:
    """Whether all operands but the first, the indices, are known."""
    return all(equation.known(k) is not None for k in range(1, len(equation.eqn.invars)))


def _probe(equation: Equation) -> LocalJacobian:
    """Find out where entries go by moving their numbers instead of them."""
    source = _moved_numbers(equation)
    lost = source < 0
    found = None if lost.any() else _fit(equation, source)
    if found is not None:
        return constant(found)
    kept = np.flatnonzero(~lost)
    if kept.size == 0:
        return NOTHING
    out_axes = coordinates(kept, equation.result_shape())
    in_axes = coordinates(source.reshape(-1)[kept], equation.operand_shape(0))
    return constant(_move(equation, [kept.size], out_axes, in_axes))


def _moved_numbers(equation: Equation) -> np.ndarray:
    """For every result entry the flat index of the operand entry that it is, or -1."""
    shape = equation.operand_shape(0)
    # Numbers start at 1, so that a fill value of zero can be told from entry 0.
    numbers = np.arange(1, math.prod(shape) + 1, dtype=np.int32).reshape(shape)
    params = dict(equation.eqn.params)
    if "fill_value" in params:
        params["fill_value"] = 0
    with jax.ensure_compile_time_eval():
        indices = [equation.known(k) for k in range(1, len(equation.eqn.invars))]
        (moved,) = bind_equation(equation.eqn, [numbers, *indices], params)
    return np.asarray(moved).astype(np.int64) - 1


def _fit(equation: Equation, source: np.ndarray) -> dict[Edge, Structure] | None:
    """The move with one loop per result axis, if operand positions are sums over the result axes."""
    in_axes = separable_axes(source, equation.operand_shape(0))
    sizes = equation.result_shape()
    return None if in_axes is None else _move(equation, sizes, _loops(sizes), in_axes)


def separable_axes(places: np.ndarray, shape: Sequence[int]) -> list[Axis] | None:
    """Flat places over a grid as one axis per axis of `shape`, with one loop per axis of the grid.

    `None` when a position is not a sum of contributions of the grid's axes.
    """
    rank = places.ndim
    axes = []
    for position in np.unravel_index(places, shape) if len(shape) else ():
        # If position(i₁, …, iᵣ) = c + Σ_d f_d(i_d), then f_d is what is seen along axis d from the corner,
        # where all other indices are 0. That is necessary; whether it is enough is tested on the whole grid.
        corner = position[(0,) * rank]
        rows = [position[_line(d, rank)] - corner for d in range(rank)]
        total = np.asarray(corner)
        for d, row in enumerate(rows):
            total = total + row.reshape([-1 if e == d else 1 for e in range(rank)])
        if not np.array_equal(total, position):
            return None
        axes.append(Axis.sum_of(int(corner), ((d, Table(row)) for d, row in enumerate(rows))))
    return axes


def _line(d: int, rank: int) -> tuple[Any, ...]:
    return tuple(slice(None) if e == d else 0 for e in range(rank))


def coordinates(flat: np.ndarray, shape: Sequence[int]) -> list[Axis]:
    """Flat places as one axis per axis of `shape`, with a single loop over all of them."""
    indices = np.unravel_index(flat, shape) if len(shape) else ()
    return [Axis.sum_of(0, ((0, Table(index)),)) for index in indices]


def _indexed(equation: Equation) -> LocalJacobian:
    """Gathers and dynamic slices: moves when the indices are known, else by JAX's own rule."""
    return _probe(equation) if _moves_known(equation) else fallback(equation)


# --- Scatters and updates of slices put entries at known indices.
#
# They are linear in what they place and in what they place it into, and every entry of either lands in one
# place or is lost. Where it lands is found by pulling the numbers of the result's places back through JAX's
# own rule. With unknown indices the conservative road is taken.

_EXACT = 2**24
"""Single precision counts exactly up to here."""


def _placing(*linear: int) -> Rule:
    """The rule of a primitive that is linear in the given operands; all others are indices."""

    def rule(equation: Equation) -> LocalJacobian:
        indices = [k for k in range(len(equation.eqn.invars)) if k not in linear]
        is_known = all(equation.known(k) is not None for k in indices)
        if not is_known or math.prod(equation.result_shape()) >= _EXACT:
            return fallback(equation)
        structures: dict[Edge, Structure] = {}
        for operand in equation.wanted_operands:
            structure = _placed_edge(equation, operand, _landings(equation, operand, linear))
            if structure is not None:
                structures[0, operand] = structure
        return constant(structures)

    return rule


def _landings(equation: Equation, operand: int, linear: tuple[int, ...]) -> np.ndarray:
    """For every entry of an operand, the flat place in the result where it lands, or -1."""
    # Numbers of places need more digits than the operand may have (bfloat16 counts to 256).
    dtype = jnp.result_type(float)
    apply = _IN_ANY_DTYPE[equation.eqn.primitive.name]
    shape = equation.result_shape()
    with jax.ensure_compile_time_eval():
        operands: list[Any] = [
            jnp.zeros(equation.operand_shape(k), dtype) if k in linear else equation.known(k)
            for k in range(len(equation.eqn.invars))
        ]

        def place(entries: Any) -> Any:
            return apply(equation.eqn, *operands[:operand], entries, *operands[operand + 1 :])

        # Placing is linear, z = P e with a matrix P of zeros and ones, and each entry lands in one place at
        # most. So (Pᵀ n)[entry] = Σ_place P[place, entry] n[place] is the number of the place where the entry
        # lands, and 0 where it is lost: it was overwritten, or its index is out of bounds.
        numbers = jnp.arange(1, math.prod(shape) + 1, dtype=dtype).reshape(shape)
        (pulled,) = jax.vjp(place, operands[operand])[1](numbers)
    return np.asarray(pulled).astype(np.int64) - 1


def _scatter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A scatter of operands in another dtype; the equation holds a program that adds those of its own."""

    def apply(eqn: JaxprEqn, operand: Any, indices: Any, updates: Any) -> Any:
        return function(
            operand, indices, updates, eqn.params["dimension_numbers"], mode=eqn.params["mode"],
            indices_are_sorted=eqn.params["indices_are_sorted"],
            unique_indices=eqn.params["unique_indices"],
        )  # fmt: skip

    return apply


_IN_ANY_DTYPE: dict[str, Callable[..., Any]] = {
    "scatter": _scatter(lax.scatter),
    **dict.fromkeys(("scatter-add", "scatter_add"), _scatter(lax.scatter_add)),
    "dynamic_update_slice": lambda eqn, *operands: bind_equation(eqn, operands)[0],
}


def _placed_edge(equation: Equation, operand: int, landings: np.ndarray) -> Structure | None:
    in_shape, out_shape = equation.operand_shape(operand), equation.result_shape()
    kept = np.flatnonzero(landings >= 0)
    if kept.size == 0:
        return None
    out_axes = separable_axes(landings, out_shape) if kept.size == landings.size else None
    if out_axes is not None:
        in_axes = [Axis.of(d) for d in range(len(in_shape))]
        sizes = in_shape
    else:
        out_axes = coordinates(landings.reshape(-1)[kept], out_shape)
        in_axes = coordinates(kept, in_shape)
        sizes = (kept.size,)
    found = term_structure(out_shape, in_shape, sizes, out_axes, in_axes, index_map=True)
    return None if found is None else found[0]


MOVING_RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "broadcast_in_dim": _broadcast_in_dim,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _rev,
    "concatenate": _made_of_parts("dimension"),
    "split": _cut_into_parts("axis"),
    "stack": _made_of_parts("axis", is_stacked=True),
    "unstack": _cut_into_parts("axis", is_stacked=True),
    "tile": _tile,
    "pad": _pad,
    "gather": _indexed,
    "dynamic_slice": _indexed,
    # Notes to the compiler, and what `shard_map` says about a value.
    **dict.fromkeys(
        ("device_put", "layout_constraint", "name", "optimization_barrier", "pvary", "reshard",
         "sharding_constraint"),
        _each_as_it_is,
    ),
}  # fmt: skip

PLACING_RULES: dict[str, Rule] = {
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), _placing(0, 2)),
    "dynamic_update_slice": _placing(0, 1),
}

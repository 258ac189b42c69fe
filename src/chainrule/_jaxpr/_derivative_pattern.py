"""Where a Jacobian can be non-zero, proved from the program.

The derivative of a function along a tangent is a program that JAX makes, with the rules of the user's
`custom_jvp` functions in it. It is linear in the tangent. This module runs that program on sets: every
element of every array has the set of tangent entries that it can depend on. What is not in the set of a
result is zero in the Jacobian, at every point.

That is a proof only if no set is ever too small:
- A primitive without a rule gives every result all entries of all its operands.
- An index is known only if it is an integer that follows from literals and captured arrays by operations that
  are exact. At an unknown index any element may be meant; at one outside the array what the mode says.
- Of a `cond`, every branch counts. A loop runs until its sets no longer grow, or step by step if it is short.
- Programs with mutable references are refused.

Nothing of the user's is run here, no callback either: the program is traced, and then read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from chainrule._errors import CapabilityError
from chainrule._jaxpr._evaluate import trace_avals
from chainrule._jaxpr._moves import (
    MOVES,
    clamped_start,
    fold,
    gather_windows,
    is_discrete,
    move,
    pad,
    scatter_windows,
)
from chainrule._jaxpr._names import is_reference, scan_layout
from chainrule._jaxpr._programs import SubProgram, plain_text, subprograms, walk
from chainrule._jaxpr._sets import SetAlgebra, Sets, WorkLimit
from chainrule._lru_cache import LRUCache
from chainrule._patterns import Pattern

_MOST_WORK = 2e7
"""Numbers that looking for a pattern may touch: about half a second."""

_PER_EQUATION = 1000
"""An equation takes as long as this many numbers, however small its arrays are."""

_MOST_EQUATIONS = 4000
"""Programs that are longer are not differentiated once more: that alone takes seconds."""

_STEP_BY_STEP = 2000
"""A `scan` that runs no more equations than this is followed step by step, with the indices of each step."""


def derivative_pattern(
    function: Callable[..., Sequence[Any]], avals: Sequence[Any], others: Sequence[Any] = ()
) -> Pattern:
    """Where the Jacobian of a function can be non-zero, for any values of its operands.

    Args:
        function: of operands, then others; returns a list of real arrays.
        avals: types of the operands, with respect to which it is differentiated (`jax.typeof` of them, or
            `jax.ShapeDtypeStruct`s).
        others: types of further inputs.

    Returns:
        The pattern. Rows are the elements of the results, columns those of the operands.

    Raises:
        CapabilityError: there is no proof, or finding one takes too long (`no_pattern`).
    """
    avals, others = list(map(_as_aval, avals)), list(map(_as_aval, others))
    count = len(avals)

    def derivative(*inputs: Any) -> list[Any]:
        def of_operands(*operands: Any) -> list[Any]:
            return list(function(*operands, *inputs[2 * count :]))

        return jax.jvp(of_operands, inputs[:count], inputs[count : 2 * count])[1]

    program = trace_avals(derivative, [*avals, *avals, *others])
    name = _identity(program)
    found = _known.get(name)
    if found is None:
        try:
            found = _read_pattern(program, avals, len(others))
        except CapabilityError as error:
            found = error
        _known.put(name, found)
    if isinstance(found, CapabilityError):
        raise found
    return found


def _as_aval(kind: Any) -> Any:
    is_plain = isinstance(kind, jax.ShapeDtypeStruct)
    return jax.core.ShapedArray(kind.shape, kind.dtype) if is_plain else kind


_known: LRUCache[str, Pattern | CapabilityError] = LRUCache(64)


def _identity(program: ClosedJaxpr) -> str:
    """A name for all that decides a pattern: the equations, and the constants that may be indices."""
    digest = hashlib.sha256(plain_text(program.jaxpr).encode())
    held = [sub.program for eqn in walk(program) for sub in subprograms(eqn)]
    for inner in (program, *held):
        for var, const in zip(inner.jaxpr.constvars, inner.consts, strict=True):
            value = _constant(var.aval, const)
            if value is not None:
                digest.update(f"{value.dtype}{value.shape}".encode())
                digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()


def _read_pattern(program: ClosedJaxpr, avals: Sequence[Any], n_others: int) -> Pattern:
    """The pattern of a derivative: a program of operands, as many tangents, and others."""
    _refuse(program)
    count = len(avals)
    sizes = [math.prod(aval.shape) for aval in avals]
    algebra = SetAlgebra(sum(sizes), WorkLimit(_MOST_WORK))
    starts = np.cumsum([0, *sizes])
    tangents = [
        Operand(algebra.singletons(tuple(aval.shape), int(start)))
        for aval, start in zip(avals, starts, strict=False)
    ]
    inputs = [*[Operand()] * count, *tangents, *[Operand()] * n_others]
    results = _Reader(algebra).run(program, inputs)
    return _pattern(algebra, program, results, sum(sizes))


def _refuse(program: ClosedJaxpr) -> None:
    equations = 0
    for eqn in walk(program):
        equations += 1
        if any(is_reference(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
            raise CapabilityError(
                "The pattern of this Jacobian is not known: the program writes to mutable references, and "
                "what they hold is not followed. Use method='jacrev' or 'jacfwd'.",
                code="no_pattern",
            )
    if equations > _MOST_EQUATIONS:
        raise CapabilityError(
            f"The pattern of this Jacobian is not looked for: its derivative has {equations} equations, "
            f"more than {_MOST_EQUATIONS}. Use method='jacrev' or 'jacfwd'.",
            code="no_pattern",
        )


def _pattern(
    algebra: SetAlgebra, program: ClosedJaxpr, results: Sequence[Operand], width: int
) -> Pattern:
    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    start = 0
    for atom, result in zip(program.jaxpr.outvars, results, strict=True):
        if result.sets is not None:
            algebra.work.charge(result.sets.entries)
            coordinates = result.sets.per_element.tocoo()
            rows.append(coordinates.row + start)
            columns.append(coordinates.col)
        start += math.prod(atom.aval.shape)
    return Pattern.at(np.concatenate(rows), np.concatenate(columns), (start, width))


@dataclass(frozen=True, eq=False)
class Operand:
    """What is known about an array.

    Attributes:
        sets: on which entries of the tangent each element depends; `None` when none does.
        value: of an array of integers or booleans that is the same in every run; else `None`.
    """

    sets: Sets | None = None
    value: np.ndarray | None = None


class _Reader:
    """Runs programs on sets."""

    def __init__(self, algebra: SetAlgebra) -> None:
        self.algebra = algebra

    def run(self, program: ClosedJaxpr, operands: Sequence[Operand]) -> list[Operand]:
        """What is known about the results of a program."""
        jaxpr = program.jaxpr
        known: dict[Any, Operand] = {
            var: Operand(value=_constant(var.aval, const))
            for var, const in zip(jaxpr.constvars, program.consts, strict=True)
        }
        known.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Operand:
            if isinstance(atom, Literal):
                return Operand(value=_constant(atom.aval, atom.val))
            return known[atom]

        for eqn in jaxpr.eqns:
            known.update(
                zip(eqn.outvars, self._results(eqn, list(map(read, eqn.invars))), strict=True)
            )
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
        self.algebra.work.charge(_PER_EQUATION)
        held = _HOLDING.get(eqn.primitive.name)
        depends = any(operand.sets is not None for operand in operands)
        if held is not None and (depends or held is _call):
            return held(self, eqn, operands)
        if depends:
            rule = _RULES.get(eqn.primitive.name, _everything)
            found = rule(self.algebra, eqn, operands)
            self.algebra.work.charge(sum(sets.labels.size for sets in found if sets is not None))
            return [Operand(sets) for sets in found]
        value = fold(eqn, [operand.value for operand in operands])
        return [Operand(value=value)] * len(eqn.outvars)

    def union(self, operands: Sequence[Operand]) -> Operand:
        """One of several."""
        parts = [operand.sets for operand in operands if operand.sets is not None]
        return Operand(self.algebra.union(parts) if parts else None)


def _constant(aval: Any, value: Any) -> np.ndarray | None:
    is_known = is_discrete(aval) and not isinstance(value, jax.core.Tracer)
    return np.asarray(value, aval.dtype) if is_known else None


# Equations that hold programs.


def _call(reader: _Reader, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
    (sub,) = subprograms(eqn)
    return reader.run(sub.program, operands)


def _cond(reader: _Reader, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
    branches = subprograms(eqn)
    index = operands[0].value
    if index is not None:
        # Clamped as `lax.cond` clamps it: an index outside runs the first or the last branch.
        branches = (branches[clamped_start(index, len(branches), 1)],)
    found = [reader.run(branch.program, operands[1:]) for branch in branches]
    return [reader.union(results) for results in zip(*found, strict=True)]


def _while(reader: _Reader, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
    # The condition only decides how often the body runs. JAX takes that number for a constant when it
    # differentiates, so no derivative goes through the condition.
    _, body = subprograms(eqn)
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    constants = operands[n_cond : n_cond + n_body]
    carry, _ = _grown(reader, body, constants, operands[n_cond + n_body :], [])
    return carry


def _scan(reader: _Reader, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
    (body,) = subprograms(eqn)
    n_constants, n_carry = scan_layout(eqn)
    constants = operands[:n_constants]
    carry = operands[n_constants : n_constants + n_carry]
    scanned = operands[n_constants + n_carry :]
    length = eqn.params["length"]
    if length * sum(1 for _ in walk(body.program)) > _STEP_BY_STEP:
        slices = [_any_slice(reader, operand) for operand in scanned]
        carry, stacked = _grown(reader, body, constants, carry, slices)
        return [*carry, *(_repeated(operand, length) for operand in stacked)]
    steps: dict[int, list[Operand]] = {}
    for step in reversed(range(length)) if eqn.params["reverse"] else range(length):
        slices = [_slice_of(operand, step) for operand in scanned]
        results = reader.run(body.program, [*constants, *carry, *slices])
        carry, steps[step] = results[:n_carry], results[n_carry:]
    shapes = [var.aval.shape for var in eqn.outvars[n_carry:]]  # type: ignore[attr-defined]
    stacked = [
        _stacked(reader, [steps[step][k] for step in range(length)], shape)
        for k, shape in enumerate(shapes)
    ]
    return [*carry, *stacked]


def _grown(
    reader: _Reader,
    body: SubProgram,
    constants: Sequence[Operand],
    carry: Sequence[Operand],
    slices: Sequence[Operand],
) -> tuple[list[Operand], list[Operand]]:
    """The carry and the other results of a loop, after any number of steps.

    The sets of the carry before a step are united with those after it, until nothing is added. Values are
    forgotten: those of another step are different.
    """
    # Sets only grow here and are bounded by all entries, so the loop ends. The sets before the first step are
    # part of the union: a loop may run no step at all.
    carry = [Operand(operand.sets) for operand in carry]
    while True:
        results = reader.run(body.program, [*constants, *carry, *slices])
        after = [reader.union(pair) for pair in zip(carry, results[: len(carry)], strict=True)]
        if all(_is_same(reader, *pair) for pair in zip(carry, after, strict=True)):
            return after, [Operand(result.sets) for result in results[len(carry) :]]
        carry = after


def _is_same(reader: _Reader, a: Operand, b: Operand) -> bool:
    if a.sets is None or b.sets is None:
        return all(operand.sets is None or operand.sets.entries == 0 for operand in (a, b))
    reader.algebra.work.charge(a.sets.entries + b.sets.entries)
    return a.sets.equals(b.sets)


def _slice_of(operand: Operand, step: int) -> Operand:
    sets, value = operand.sets, operand.value
    return Operand(
        None if sets is None else sets.moved(sets.labels[step]),
        None if value is None else value[step],
    )


def _any_slice(reader: _Reader, operand: Operand) -> Operand:
    return Operand(None if operand.sets is None else reader.algebra.over_axes(operand.sets, [0]))


def _repeated(operand: Operand, length: int) -> Operand:
    sets = operand.sets
    if sets is None:
        return Operand()
    return Operand(sets.moved(np.broadcast_to(sets.labels, (length, *sets.shape))))


def _stacked(reader: _Reader, steps: Sequence[Operand], shape: tuple[int, ...]) -> Operand:
    present = {step: operand.sets for step, operand in enumerate(steps) if operand.sets is not None}
    labels = np.zeros(shape, np.int64)
    if not present:
        return Operand()
    found, table = reader.algebra.together(list(present.values()))
    for step, own in zip(present, found, strict=True):
        labels[step] = own
    return Operand(Sets(labels, table))


def _linear_solve(reader: _Reader, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
    """`custom_linear_solve(*constants, *b)` by the program that solves, where only b has a tangent."""
    n_constants = sum(eqn.params["const_lengths"])
    right = operands[n_constants:]
    solvers = [sub for sub in subprograms(eqn) if sub.index == 2]
    if len(solvers) != 1 or any(operand.sets is not None for operand in operands[:n_constants]):
        found = _everything(reader.algebra, eqn, operands)
        return [Operand(sets) for sets in found]
    # With A fixed, the tangent of A⁻¹ b is A⁻¹ db: the program that solves, on the sets of b. Where a
    # constant (A) has a tangent, or there are several solvers, everything may depend on everything.
    places = [place for place in solvers[0].operands if place is not None]
    return reader.run(solvers[0].program, [*(operands[place] for place in places), *right])


_HOLDING: dict[str, Callable[[_Reader, JaxprEqn, list[Operand]], Sequence[Operand]]] = {
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr", "remat", "remat2",
         "checkpoint", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
        _call,
    ),
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "custom_linear_solve": _linear_solve,
}  # fmt: skip


# Equations that hold none. An operand without sets depends on no tangent.

Rule = Callable[[SetAlgebra, JaxprEqn, list[Operand]], Sequence[Sets | None]]


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _present(operands: Sequence[Operand]) -> list[Sets]:
    return [operand.sets for operand in operands if operand.sets is not None]


def _spread(sets: Sets, shape: tuple[int, ...]) -> Sets:
    return sets if sets.shape == shape else sets.moved(np.broadcast_to(sets.labels, shape))


def _everything(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    """Any element of any result may depend on any element of any operand."""
    return [algebra.everything(_present(operands), _shape(var)) for var in eqn.outvars]


def _elementwise(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    """Operands have the shape of the result, or none."""
    shape = _shape(eqn.outvars[0])
    return [algebra.union([_spread(sets, shape) for sets in _present(operands)])]


def _each(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets | None]:
    """As many results as operands, each of its own."""
    return [operand.sets for operand in operands]


def _moving(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    found, table = algebra.together(_present(operands))
    own = iter(found)
    labels = (
        np.zeros(_shape(atom), np.int64) if operand.sets is None else next(own)
        for atom, operand in zip(eqn.invars, operands, strict=True)
    )
    return [Sets(moved, table) for moved in move(eqn, *labels)]


def _pad(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    sets, filling = operands[0].sets, operands[1].sets
    config = eqn.params["padding_config"]
    parts = []
    if sets is not None:
        parts.append(sets.moved(pad(sets.labels, 0, config)))
    if filling is not None:
        parts.append(_spread(filling, _shape(eqn.outvars[0])))
    return [algebra.union(parts)]


def _starts(
    operands: Sequence[Operand], lengths: Sequence[int], sizes: Sequence[int]
) -> list[int | None]:
    """Where a dynamic slice begins along each axis; `None` where that is not known."""
    return [
        0 if length == size
        else None if operand.value is None
        else clamped_start(operand.value, length, size)
        for operand, length, size in zip(operands, lengths, sizes, strict=True)
    ]  # fmt: skip


def _dynamic_slice(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    (sets,) = _present(operands)
    sizes = eqn.params["slice_sizes"]
    starts = _starts(operands[1 : 1 + len(sizes)], sets.shape, sizes)
    unknown = [axis for axis, start in enumerate(starts) if start is None]
    sets = algebra.over_axes(sets, unknown, keep=True)
    places = tuple(slice(s or 0, (s or 0) + n) for s, n in zip(starts, sizes, strict=True))
    return [sets.moved(sets.labels[places])]


def _dynamic_update_slice(
    algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]
) -> Sequence[Sets]:
    """What is written depends on the update, the rest on the operand.

    Where the update begins is not known along some axes, it may land anywhere along them: every place there
    has all of the update's sets along these axes, and nothing of the operand is certain to be overwritten.
    """
    operand, update, *indices = operands
    shape, sizes = _shape(eqn.invars[0]), _shape(eqn.invars[1])
    starts = _starts(indices[: len(sizes)], shape, sizes)
    unknown = [axis for axis, start in enumerate(starts) if start is None]
    places = tuple(
        slice(None) if start is None else slice(start, start + size)
        for start, size in zip(starts, sizes, strict=True)
    )
    parts = []
    if operand.sets is not None:
        labels = operand.sets.labels
        if not unknown:
            labels = labels.copy()
            labels[places] = 0
        parts.append(operand.sets.moved(labels))
    if update.sets is not None:
        found = algebra.over_axes(update.sets, unknown)
        labels = np.zeros(shape, np.int64)
        labels[places] = np.expand_dims(found.labels, tuple(unknown))
        parts.append(found.moved(labels))
    return [algebra.union(parts)]


def _gather(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    sets, indices = operands[0].sets, operands[1].value
    if sets is None:
        return _everything(algebra, eqn, operands)
    if indices is None:
        # Any index may be meant: the axes that it is for are united, and then it does not matter.
        sizes = eqn.params["slice_sizes"]
        indexed = eqn.params["dimension_numbers"].start_index_map
        unknown = [axis for axis in indexed if sizes[axis] < sets.shape[axis]]
        sets = algebra.over_axes(sets, unknown, keep=True)
        indices = np.zeros(_shape(eqn.invars[1]), np.int64)
    places = gather_windows(eqn, indices).places()
    if places is None:
        return _everything(algebra, eqn, operands)
    algebra.work.charge(4 * places.size)
    return [sets.moved(np.append(sets.labels.ravel(), 0)[places])]


def _scatter(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    """What was there counts even where it is overwritten; so do all updates that meet at one place."""
    operand, indices, updates = operands
    shape = _shape(eqn.invars[0])
    parts = [] if operand.sets is None else [operand.sets]
    if updates.sets is not None:
        # Without known places each element may get every update, which is what `everything` says.
        places = None
        if indices.value is not None:
            places = scatter_windows(eqn, indices.value).places()
        if places is None:
            parts.append(algebra.everything([updates.sets], shape))
        else:
            lands = places.ravel() >= 0
            labels = updates.sets.labels.ravel()[lands]
            size = math.prod(shape)
            found = algebra.of_groups(places.ravel()[lands], labels, size, updates.sets.table)
            parts.append(found.moved(found.labels.reshape(shape)))
    return [algebra.union(parts)]


def _reduction(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    """Results of all operands together; initial values are operands, too."""
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["dimensions"]
    shape = _shape(eqn.outvars[0])
    parts = [algebra.over_axes(sets, axes) if sets.shape else sets for sets in _present(operands)]
    return [algebra.union([_spread(part, shape) for part in parts])] * len(eqn.outvars)


def _along(axis_of: Callable[[JaxprEqn], Sequence[int]]) -> Rule:
    """Every result depends on all operands, along some axes on all elements; other axes are kept."""

    def rule(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
        axes = axis_of(eqn)
        shape = _shape(eqn.outvars[0])
        mixed = {axis % len(shape) for axis in axes}
        kept = [n for axis, n in enumerate(shape) if axis not in mixed]
        parts = []
        for sets in _present(operands):
            own = {axis % max(1, len(sets.shape)) for axis in axes}
            if [n for axis, n in enumerate(sets.shape) if axis not in own] != kept:
                return _everything(algebra, eqn, operands)
            parts.append(algebra.over_axes(sets, sorted(own)))
        found = algebra.union(parts)
        labels = np.expand_dims(found.labels, tuple(sorted(mixed)))
        return [found.moved(np.broadcast_to(labels, _shape(var))) for var in eqn.outvars]

    return rule


def _dot_general(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    contracted, batch = eqn.params["dimension_numbers"]
    shape = _shape(eqn.outvars[0])
    free = [
        [axis for axis in range(len(_shape(atom))) if axis not in (*c, *b)]
        for atom, c, b in zip(eqn.invars, contracted, batch, strict=True)
    ]
    parts = []
    for side, operand in enumerate(operands):
        if operand.sets is None:
            continue
        kept = [*batch[side], *free[side]]
        ordered = operand.sets.labels.transpose(*kept, *contracted[side])
        found = algebra.over_axes(
            operand.sets.moved(ordered), range(len(kept), len(kept) + len(contracted[side]))
        )
        # Axes of the result: batch, free ones of the left, free ones of the right.
        n_batch, n_left = len(batch[0]), len(free[0])
        # By the product rule the tangent is dL·R + L·dR. An element (b, l, r) of the first term depends on
        # all of dL[b, l, :], the contracted axes united, for every r; of the second on dR[b, r, :] for every
        # l. The other factor has no tangent.
        missing = range(n_batch, n_batch + n_left) if side else range(n_batch + n_left, len(shape))
        labels = np.expand_dims(found.labels, tuple(missing))
        parts.append(found.moved(np.broadcast_to(labels, shape)))
    return [algebra.union(parts)]


def _windows(
    algebra: SetAlgebra, sets: Sets, sizes: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], lengths: Sequence[int],
) -> Sets:  # fmt: skip
    """The union over windows that move along every axis of an array that is padded already."""
    parts = []
    for offsets in np.ndindex(*sizes):
        places = tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, s, n in zip(offsets, dilations, strides, lengths, strict=True)
        )
        parts.append(sets.moved(sets.labels[places]))
    return algebra.union(parts)


def _reduce_window(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    (sets, *others) = _present(operands)
    params, shape = eqn.params, _shape(eqn.outvars[0])
    if others or operands[0].sets is None or 0 in shape:
        return _everything(algebra, eqn, operands)
    config = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    padded = sets.moved(pad(sets.labels, 0, config))
    return [
        _windows(
            algebra, padded, params["window_dimensions"], params["window_strides"],
            params["window_dilation"], shape,
        )
    ] * len(eqn.outvars)  # fmt: skip


def _convolution(algebra: SetAlgebra, eqn: JaxprEqn, operands: list[Operand]) -> Sequence[Sets]:
    """The images along space by their windows; all of a kernel that makes a feature. Groups are ignored."""
    params = eqn.params
    shape = _shape(eqn.outvars[0])
    dims = params["dimension_numbers"]
    if 0 in shape or params["batch_group_count"] != 1:
        return _everything(algebra, eqn, operands)
    out_batch, out_feature, *out_space = dims.out_spec
    parts = []
    images, kernels = (operand.sets for operand in operands)
    if images is not None:
        batch, feature, *space = dims.lhs_spec
        found = algebra.over_axes(
            images.moved(images.labels.transpose(feature, batch, *space)), [0]
        )
        config = [(0, 0, 0)] + [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
        ]
        padded = found.moved(pad(found.labels, 0, config))
        sizes = [_shape(eqn.invars[1])[axis] for axis in dims.rhs_spec[2:]]
        found = _windows(
            algebra, padded, [1, *sizes], [1, *params["window_strides"]],
            [1, *params["rhs_dilation"]], [shape[out_batch], *(shape[axis] for axis in out_space)],
        )  # fmt: skip
        labels = np.moveaxis(
            np.broadcast_to(found.labels[..., None], (*found.shape, shape[out_feature])),
            range(len(shape)), [out_batch, *out_space, out_feature],
        )  # fmt: skip
        parts.append(found.moved(labels))
    if kernels is not None:
        feature, *rest = dims.rhs_spec
        found = algebra.over_axes(kernels, rest)
        lengths = [-1 if axis == out_feature else 1 for axis in range(len(shape))]
        parts.append(found.moved(np.broadcast_to(found.labels.reshape(lengths), shape)))
    return [algebra.union(parts)]


_ELEMENTWISE = (
    "add sub mul div neg add_any select_n convert_element_type reduce_precision real imag complex conj "
    "name pvary sharding_constraint"
).split()
"""What a tangent meets on its way. Others are allowed to be missing: their results depend on everything."""

_ACCUMULATING = tuple(
    f"{dash}{kind}" for dash in "-_" for kind in ("add", "sub", "mul", "min", "max")
)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(MOVES, _moving),
    **dict.fromkeys(("device_put", "optimization_barrier"), _each),
    **dict.fromkeys(("reduce_sum", "reduce"), _reduction),
    "cumsum": _along(lambda eqn: [eqn.params["axis"]]),
    "sort": _along(lambda eqn: [eqn.params["dimension"]]),
    "fft": _along(lambda eqn: range(-len(eqn.params["fft_lengths"]), 0)),
    "triangular_solve": _along(lambda eqn: [-2, -1]),
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **{f"scatter{kind}": _scatter for kind in ("", *_ACCUMULATING)},
    "dot_general": _dot_general,
    "reduce_window_sum": _reduce_window,
    "conv_general_dilated": _convolution,
}  # fmt: skip

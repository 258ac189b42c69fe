"""Steps that stay inside the bounds of the input schema.

A bound (`Field(ge=0, le=1)`, or a validator of the author's) is found by asking: the schema validates a
point or refuses it. All elements are moved at once first, which settles the usual case with two questions;
only where that is refused, halves of halves are asked about until the elements at a bound are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chainrule._errors import InputError
from chainrule.runtime._derivatives._program import Program
from chainrule.runtime._derivatives._stencils import Stencil


@dataclass(frozen=True)
class Room:
    """How every input element may move.

    Attributes:
        steps: one per element, reversed where only the other direction is allowed.
        one_sided: where only one direction is allowed.
    """

    steps: np.ndarray
    one_sided: np.ndarray


def find_room(program: Program, stencil: Stencil, steps: np.ndarray) -> Room:
    """Fit steps to the bounds of the inputs.

    An element that is closer to a bound than its step moves away from it. One that is too close to two of
    them gets a shorter step.

    Args:
        program: whose inputs move.
        stencil: says how many steps in which directions are taken.
        steps: the steps to take where there is room.

    Raises:
        InputError: the schema allows no other value of an element (`no_room`).
    """
    nowhere = np.zeros(steps.shape, bool)
    if stencil.is_complex:  # leaves the real values where they are
        return Room(steps, nowhere)
    both = _may_move(program, stencil, steps)
    # Inputs that are refused as they are get their message from the evaluation.
    if both.all() or not program.allows(program.origin):
        return Room(steps, nowhere)
    steps = steps.copy()
    sign = np.where(both, 1.0, 0.0)
    while True:
        for direction in (1.0, -1.0):
            rest = np.where(sign == 0, direction * steps, 0.0)
            sign[(sign == 0) & _may_move(program, stencil.one_sided, rest)] = direction
        stuck = sign == 0
        if not stuck.any():
            return Room(sign * steps, ~both)
        steps[stuck] /= 2
        _require_room(program, steps, stuck)


def _may_move(program: Program, stencil: Stencil, moves: np.ndarray) -> np.ndarray:
    """Which elements may be at all nodes of a stencil, one element at a time."""
    allowed = np.ones(moves.shape, bool)
    for extreme in {min(0, *stencil.nodes), max(0, *stencil.nodes)} - {0}:
        _mark_refused(program, extreme * moves, np.flatnonzero(moves), allowed)
    return allowed


def _mark_refused(
    program: Program, moves: np.ndarray, elements: np.ndarray, allowed: np.ndarray
) -> None:
    point = program.origin.copy()
    point[elements] += moves[elements]
    if not elements.size or program.allows(point):
        return
    if elements.size == 1:
        allowed[elements] = False
        return
    for half in np.array_split(elements, 2):
        _mark_refused(program, moves, half, allowed)


def _require_room(program: Program, steps: np.ndarray, stuck: np.ndarray) -> None:
    lost = stuck & (program.round(program.origin + steps) == program.round(program.origin))
    if lost.any():
        path, index = program.layout.locate(int(np.flatnonzero(lost)[0]))
        raise InputError(
            f"The input schema allows no other value of {path!r} (element {list(index)}) than the one it "
            "has, so there is no difference to take. Leave this path out, or widen its bounds.",
            code="no_room",
            path=path,
        )

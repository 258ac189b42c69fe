"""Columns of a Jacobian from evaluations of the program.

Columns that touch no common row are perturbed together, so a group of columns costs as many evaluations
as a single one. What comes out is a stream of matrix entries; whether they are stored densely, sparsely,
or contracted with a cotangent at once is the consumer's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from chainrule._errors import InputError
from chainrule.runtime._derivatives._blocks import Entries
from chainrule.runtime._derivatives._room import find_room
from chainrule.runtime._derivatives._sampler import Sampler
from chainrule.runtime._derivatives._sparsity import Pattern


def difference_columns(sampler: Sampler, pattern: Pattern | None = None) -> Iterator[Entries]:
    """The entries of the Jacobian, column by column or group by group.

    Args:
        sampler: makes the evaluations.
        pattern: where the Jacobian may be non-zero; `None` for anywhere.

    Raises:
        InputError: a step so small that the input does not change.
    """
    room = find_room(sampler.program, sampler.stencil, sampler.steps)
    if pattern is None:
        groups: Sequence[Any] = range(room.steps.size)
    else:
        groups = pattern.column_groups
    moves = _Moves(groups, room.steps)
    one_sided = [bool(room.one_sided[group].any()) for group in groups]
    for group, found in zip(groups, sampler.differences(moves, one_sided), strict=True):
        for difference in found:
            _require_moved(sampler, difference.moved, group)
        _require_fit(sampler, pattern)
        if pattern is None:
            column = sum(weight * (change / moved[group]) for weight, change, moved in found)
            yield Entries(slice(None), group, np.asarray(column))
        else:
            rows, columns = pattern.entries_in(group)
            values = sum(weight * change[rows] / moved[columns] for weight, change, moved in found)
            yield Entries(rows, columns, np.asarray(values))


def random_directions(
    sampler: Sampler, count: int, seed: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Derivatives along random moves, and for each move the weights of the elements.

    The mean of their outer products estimates the Jacobian (simultaneous perturbation). An element moves
    by ±h and has the weight ±1/h: the columns of other elements average out because its sign is
    independent of theirs, and has the mean zero. An element at a bound moves by h or not at all, with the
    weights 2/h and −2/h: again the weight has the mean zero, and weight times move the mean one.
    """
    room = find_room(sampler.program, sampler.stencil, sampler.steps)
    generator = np.random.default_rng(seed)
    signs = [generator.choice([-1.0, 1.0], size=room.steps.size) for _ in range(count)]
    moves = [np.where(room.one_sided & (sign < 0), 0.0, room.steps * sign) for sign in signs]
    sides = [bool(room.one_sided.any())] * count
    weight = np.where(room.one_sided, 2 / room.steps, 1 / room.steps)
    for move, sign, found in zip(moves, signs, sampler.differences(moves, sides), strict=True):
        _require_moved(sampler, found[0].moved, np.flatnonzero(move))
        if not move.any():  # all are at bounds, and none moves: there is no change to divide
            yield np.zeros(sampler.outputs.size), weight * sign
            continue
        distances = [each.moved @ move / (move @ move) for each in found]
        slope = sum(
            each.weight * each.change / distance
            for each, distance in zip(found, distances, strict=True)
        )
        yield np.asarray(slope), weight * sign


class _Moves(Sequence[np.ndarray]):
    """One displacement per group, made when asked for: a dense set would be a matrix of the inputs."""

    def __init__(self, groups: Sequence[Any], steps: np.ndarray) -> None:
        self._groups = groups
        self._steps = steps

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: Any) -> Any:
        move = np.zeros_like(self._steps)
        group = self._groups[index]
        move[group] = self._steps[group]
        return move


def _require_moved(sampler: Sampler, moved: np.ndarray, group: Any) -> None:
    stuck = np.flatnonzero(np.atleast_1d(moved[group]) == 0)
    if stuck.size:
        element = int(np.atleast_1d(group)[stuck[0]])
        path, index = sampler.program.layout.locate(element)
        raise InputError(
            f"The step at {path!r} (element {list(index)}) is lost in rounding: the "
            f'input is {sampler.program.precision[path]}. Use eps="auto" or a larger eps.',
            code="step_lost",
            path=path,
        )


def _require_fit(sampler: Sampler, pattern: Pattern | None) -> None:
    if pattern is not None and sampler.outputs.size != pattern.shape[0]:
        raise InputError(
            f"The sparsity pattern has {pattern.shape[0]} rows, the outputs "
            f"{dict(zip(sampler.outputs.paths, sampler.outputs.shapes, strict=True))} have "
            f"{sampler.outputs.size} elements.",
            code="bad_sparsity",
        )

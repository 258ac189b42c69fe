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
from chainrule.runtime._derivatives._sampler import Sampler
from chainrule.runtime._derivatives._sparsity import Pattern
from chainrule.runtime._derivatives._stencils import Eps

__all__ = ["difference_columns", "random_directions"]


def difference_columns(
    sampler: Sampler, steps: np.ndarray, pattern: Pattern | None = None
) -> Iterator[Entries]:
    """The entries of the Jacobian, column by column or group by group.

    Args:
        sampler: makes the evaluations.
        steps: the step of every input element.
        pattern: where the Jacobian may be non-zero; `None` for anywhere.

    Raises:
        InputError: a step so small that the input does not change.
    """
    if pattern is None:
        groups: Sequence[Any] = range(steps.size)
    else:
        groups = pattern.column_groups
    moves = _Moves(groups, steps)
    for group, terms in zip(groups, sampler.differences(moves), strict=True):
        for _, moved in terms:
            _require_moved(sampler, moved, group)
        _require_fit(sampler, pattern)
        if pattern is None:
            column = sum(change / moved[group] for change, moved in terms)
            yield Entries(slice(None), group, column)
        else:
            rows, columns = pattern.entries_in(group)
            values = sum(change[rows] / moved[columns] for change, moved in terms)
            yield Entries(rows, columns, np.asarray(values))


def random_directions(
    sampler: Sampler, eps: Eps, count: int, seed: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Differences along random signs of the steps, and the inverse of each element's move.

    The mean of their outer products estimates the Jacobian (simultaneous perturbation): the columns of
    other elements average out because their signs are independent.
    """
    steps = sampler.steps(eps)
    generator = np.random.default_rng(seed)
    moves = [steps * generator.choice([-1.0, 1.0], size=steps.size) for _ in range(count)]
    everywhere = np.arange(steps.size)
    for terms in sampler.differences(moves):
        (change, moved), *_ = terms
        _require_moved(sampler, moved, everywhere)
        yield change, 1 / moved


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

"""Finding where a Jacobian is non-zero by running the program.

The columns are halved again and again. At every level each group of columns is moved and the rows that
change are its support, which can only be part of its parent's. Groups whose parents' supports are disjoint
are moved in the same evaluation, so a band takes a few evaluations per level: O(log n), not n.
"""

from __future__ import annotations

import numpy as np

from chainrule.runtime._derivatives._room import find_room
from chainrule.runtime._derivatives._sampler import Sampler
from chainrule.runtime._derivatives._sparsity import Pattern, color_groups
from chainrule.runtime._derivatives._stencils import STENCILS

HOPELESS = 16
"""From this many groups on, a level on which no two share an evaluation ends the search."""


def detect_pattern(sampler: Sampler) -> Pattern:
    """The rows that each column moves, at the sampler's inputs.

    Moves have random lengths, so that two contributions do not cancel. A program that is not deterministic
    changes everywhere and is found dense, which is slow but right. Where the search stops early, a group's
    support stands for each of its columns: the pattern may be too large, never too small.
    """
    probe = Sampler(
        sampler.program, STENCILS["forward"], "auto", executor=sampler.executor, show_progress=False
    )
    room = find_room(probe.program, probe.stencil, probe.steps)
    moves = room.steps * np.random.default_rng(0).uniform(0.5, 1.0, probe.origin.size)
    row_count = probe.outputs.size
    groups = [np.arange(probe.origin.size)]
    supports = [np.arange(row_count)]
    while any(group.size > 1 for group in groups):
        halves = [half for group in groups for half in np.array_split(group, min(2, group.size))]
        candidates = [
            support
            for group, support in zip(groups, supports, strict=True)
            for _ in range(min(2, group.size))
        ]
        together = color_groups(candidates, row_count)
        if len(together) == len(halves) >= HOPELESS:
            break
        supports = _changed_rows(probe, moves, halves, candidates, together)
        groups = halves
    return _pattern(groups, supports, (row_count, probe.origin.size))


def _changed_rows(
    probe: Sampler,
    moves: np.ndarray,
    groups: list[np.ndarray],
    candidates: list[np.ndarray],
    together: list[np.ndarray],
) -> list[np.ndarray]:
    """The candidates of each group that change when the group moves."""
    steps = []
    for members in together:
        step = np.zeros_like(moves)
        columns = np.concatenate([groups[member] for member in members])
        step[columns] = moves[columns]
        steps.append(step)
    supports = [np.zeros(0, np.int64)] * len(groups)
    for members, [(_, change, _)] in zip(together, probe.differences(steps), strict=True):
        # Not a number counts as a change: NaN != 0.
        changed = change != 0
        for member in members:
            supports[member] = candidates[member][changed[candidates[member]]]
    return supports


def _pattern(
    groups: list[np.ndarray], supports: list[np.ndarray], shape: tuple[int, int]
) -> Pattern:
    rows = [np.tile(support, group.size) for group, support in zip(groups, supports, strict=True)]
    columns = [
        np.repeat(group, support.size) for group, support in zip(groups, supports, strict=True)
    ]
    empty = np.zeros(0, np.int64)
    return Pattern.at(np.concatenate([empty, *rows]), np.concatenate([empty, *columns]), shape)

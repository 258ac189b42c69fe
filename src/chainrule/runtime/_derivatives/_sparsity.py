"""Where a Jacobian can be non-zero: as a user describes it, or found by running the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chainrule._errors import InputError
from chainrule._patterns import Pattern, color_groups
from chainrule._sparsity import DIAGONAL, is_block, pattern_of, read_blocks
from chainrule.runtime._derivatives._layout import Layout
from chainrule.runtime._derivatives._sampler import Sampler, find_room
from chainrule.runtime._derivatives._stencils import STENCILS


def read_pattern(
    sparsity: Any, inputs: Layout, output_paths: tuple[str, ...], outputs: Callable[[], Layout]
) -> Pattern:
    """The pattern that a user described.

    Args:
        sparsity: `{output path: {input path: block}}`, or just the block where there is one pair of
            paths; blocks as in `chainrule._sparsity`.
        inputs: the layout of the columns.
        output_paths: the row paths, in order.
        outputs: the layout of the rows; asked for where no block says how many an output has.

    Raises:
        InputError: an output without a block, or a block that cannot be read or does not fit.
    """
    if is_block(sparsity):
        sparsity = {output_paths[0]: {inputs.paths[0]: sparsity}}
    try:
        blocks = read_blocks(sparsity)
    except ValueError as problem:
        raise InputError(f"sparsity: {problem}.", code="bad_sparsity") from None
    rows, columns, start = [np.zeros(0, int)], [np.zeros(0, int)], 0
    for out_path in output_paths:
        row = {path: blocks.get(out_path, {}).get(path) for path in inputs.paths}
        height = _height(row, inputs, out_path, outputs)
        for in_path, part in inputs.slices().items():
            shape = (height, part.stop - part.start)
            r, c = _places(row[in_path], shape, out_path, in_path)
            rows.append(r + start)
            columns.append(c + part.start)
        start += height
    return Pattern.at(np.concatenate(rows), np.concatenate(columns), (start, inputs.size))


def _height(
    row: Mapping[str, Any], inputs: Layout, out_path: str, outputs: Callable[[], Layout]
) -> int:
    """How many elements an output has, by its blocks if they say it: a band can be part of any matrix."""
    if all(block is None for block in row.values()):
        raise InputError(
            f"sparsity says nothing about output {out_path!r}: at least one of its blocks must not be None.",
            code="bad_sparsity",
            path=out_path,
        )
    for in_path, part in inputs.slices().items():
        block, width = row[in_path], part.stop - part.start
        if block == DIAGONAL:
            return width
        if block is not None and "places" in block:
            return int(block["of"] // max(width, 1))
    part = outputs().slices()[out_path]
    return part.stop - part.start


def _places(
    block: Any, shape: tuple[int, int], out_path: str, in_path: str
) -> tuple[np.ndarray, np.ndarray]:
    if block is None:
        return np.divmod(np.arange(shape[0] * shape[1]), max(shape[1], 1))
    try:
        pattern = pattern_of(block, *shape)
    except ValueError as problem:
        raise InputError(
            f"The sparsity block of output {out_path!r} and input {in_path!r} does not fit: {problem}.",
            code="bad_sparsity",
            path=in_path,
        ) from None
    return pattern.rows, pattern.columns


HOPELESS = 16
"""From this many groups on, a level on which no two share an evaluation ends the search."""


def detect_pattern(sampler: Sampler) -> Pattern:
    """The rows that each column moves, at the sampler's inputs.

    The columns are halved again and again. At every level each group of columns is moved, and the rows that
    change are its support, which can only be part of its parent's. Groups whose parents' supports are
    disjoint are moved in the same evaluation, so a band takes a few evaluations per level: O(log n), not n.

    Moves have random lengths, so that two contributions do not cancel. A program that is not deterministic
    changes everywhere and is found dense, which is slow but right. Where the search stops early, a group's
    support stands for each of its columns: the pattern may be too large, never too small.
    """
    probe = Sampler(
        sampler.program, STENCILS["forward"], "auto", executor=sampler.executor, show_progress=False
    )
    room = find_room(probe.program, probe.stencil, probe.joint_steps)
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
    for members, change in zip(together, probe.changes(steps), strict=True):
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

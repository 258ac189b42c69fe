"""Derivatives of any program by finite differences.

Three functions with the shape of the three derivative endpoints, so that an endpoint is one line:

    def jacobian(inputs, jac_inputs, jac_outputs):
        return finite_difference_jacobian(apply, inputs, jac_inputs, jac_outputs, eps="auto")

Every evaluation serves all outputs: the cost in evaluations is that of the inputs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from chainrule._errors import InputError
from chainrule._patterns import Pattern, color_groups
from chainrule.runtime._derivatives._layout import (
    Entries,
    canonical,
    check_keys,
    dense_blocks,
    read_pattern,
    sparse_blocks,
    with_real_blocks,
)
from chainrule.runtime._derivatives._sampler import Narrowed, Sampler, find_room
from chainrule.runtime._derivatives._stencils import STENCILS, Algorithm, Eps, find_stencil

Apply = Callable[[Any], Any]
Sparsity = Literal["detect"] | Mapping[str, Mapping[str, Any]] | Any


def finite_difference_jacobian(
    apply_fn: Apply,
    inputs: Any,
    jac_inputs: Collection[str],
    jac_outputs: Collection[str],
    *,
    algorithm: Algorithm = "central",
    eps: Eps = 1e-4,
    num_samples: int | None = None,
    seed: int | None = None,
    sparsity: Sparsity | None = None,
    executor: Executor | None = None,
    show_progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """The Jacobian by finite differences.

    | algorithm | evaluations | error |
    | --- | --- | --- |
    | `central` | 2n | h² |
    | `forward` | n + 1 | h |
    | `richardson` | 4n | h⁴ |
    | `complex_step` | n | rounding only; the code must carry complex numbers through |
    | `stochastic` | 2 · num_samples | an unbiased estimate from random directions |

    n is the number of input elements, or of groups of columns when the sparsity is known: a tridiagonal
    problem of any size takes 6 evaluations. An automatic step takes one more for the outputs themselves.
    It is taken again, with as many evaluations, for elements far from zero (`central`: above 5000 in
    float64, 6 in float32), for elements near zero that the outputs hardly notice, and where the outputs
    vary within it.

    Args:
        apply_fn: function of the inputs that returns a model or a mapping.
        inputs: a model (perturbed values are validated by its class) or nested mappings.
        jac_inputs: paths of the inputs to differentiate with respect to.
        jac_outputs: paths of the outputs to differentiate.
        algorithm: see the table.
        eps: the absolute step; one per path as a mapping; or `"auto"`, which balances truncation and
            rounding for each element's magnitude and dtype, and for each output. The complex step has
            nothing to balance and ignores it.
        num_samples: random directions of the stochastic algorithm, `max(10, √n)` unless given. Central
            differences are used when that is no fewer than n, and when the sparsity is known.
        seed: of the random directions.
        sparsity: where the Jacobian may be non-zero, as `{output: {input: block}}` or one block for one
            pair of paths; a block is `"diagonal"`, a band such as `{"lower": 1, "upper": 1}`, a boolean
            array, a SciPy sparse matrix, or `None` for "anywhere".
            `"detect"` finds it at these inputs, from a few evaluations per halving of the inputs.
        executor: runs evaluations in parallel; anything with `submit(function, *arguments)`, such as
            a thread pool, a process pool, or a pool of components.
        show_progress: show a bar on a terminal when it takes longer than two seconds.

    Returns:
        `{output path: {input path: array of output shape + input shape}}` in float64. With `sparsity`
        the blocks are `SparseArray`s.

    Raises:
        PathError: a path does not exist or is not an array.
        InputError: a path is not real floating point, `eps` or `sparsity` do not fit, or a step is lost
            in rounding.

    Example:
        >>> finite_difference_jacobian(lambda x: {"y": x["x"] ** 2}, {"x": 3.0}, {"x"}, {"y"})
        {'y': {'x': array(6.)}}
    """
    sampler = _sampler(
        apply_fn, inputs, jac_inputs, jac_outputs, algorithm, eps, executor, show_progress
    )
    columns = sampler.program.layout
    count = _sample_count(algorithm, num_samples, columns.size) if sparsity is None else 0
    if count:
        directions = random_directions(sampler, count, seed)
        matrix = reduce(np.add, (np.outer(slope, weights) for slope, weights in directions))
        blocks = sampler.outputs.split_matrix(matrix / count, columns)
        return with_real_blocks(blocks, sampler.complex_outputs, ())
    pattern = _read(sparsity, sampler)
    entries = difference_columns(sampler, pattern)
    collect = dense_blocks if pattern is None else sparse_blocks
    blocks = collect(entries, lambda: sampler.outputs, columns)
    return with_real_blocks(blocks, sampler.complex_outputs, ())


def finite_difference_vjp(
    apply_fn: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    *,
    algorithm: Algorithm = "central",
    eps: Eps = 1e-4,
    num_samples: int | None = None,
    seed: int | None = None,
    sparsity: Sparsity | None = None,
    executor: Executor | None = None,
    show_progress: bool = True,
) -> dict[str, np.ndarray]:
    """The vector-Jacobian product by finite differences; columns are contracted as they come.

    Args:
        cotangent_vector: one array per output path.

    The other arguments are those of `finite_difference_jacobian`.

    Returns:
        `{input path: array}` in float64.

    Example:
        >>> double = lambda inputs: {"y": 2.0 * inputs["x"]}
        >>> gradient = finite_difference_vjp(double, {"x": np.ones(2)}, {"x"}, {"y"}, {"y": [1.0, 3.0]})
        >>> gradient["x"].round(6)
        array([2., 6.])
    """
    sampler = _sampler(
        apply_fn, inputs, vjp_inputs, vjp_outputs, algorithm, eps, executor, show_progress
    )
    check_keys(cotangent_vector, canonical(vjp_outputs), "cotangent_vector")
    columns = sampler.program.layout
    count = _sample_count(algorithm, num_samples, columns.size) if sparsity is None else 0
    gradient: np.ndarray = np.zeros(columns.size)
    if count:
        for slope, weights in random_directions(sampler, count, seed):
            along = sampler.outputs.join(cotangent_vector) @ slope
            gradient = gradient + along * weights / count
        return columns.split(gradient.real)
    for entry in difference_columns(sampler, _read(sparsity, sampler)):
        gradient = entry.add_transposed(sampler.outputs.join(cotangent_vector), gradient)
    # Real inputs have real cotangents, also where outputs are complex: see `_layout.as_cotangent`.
    return columns.split(gradient.real)


def finite_difference_jvp(
    apply_fn: Apply,
    inputs: Any,
    jvp_inputs: Collection[str],
    jvp_outputs: Collection[str],
    tangent_vector: Mapping[str, Any],
    *,
    algorithm: Algorithm = "central",
    eps: Eps = 1e-4,
    executor: Executor | None = None,
    show_progress: bool = True,
) -> dict[str, np.ndarray]:
    """The Jacobian-vector product by differences along the tangent: one or two evaluations.

    Args:
        tangent_vector: one array per input path.
        eps: the multiple of the tangent to step by. With one per path, paths of equal steps are moved
            together and the contributions add up. With `"auto"` no element moves by more than its own step.
            Elements that could move much further than others with the same multiple are a part of
            their own, with evaluations of its own.

    The other arguments are those of `finite_difference_jacobian`; `"stochastic"` means central here.

    Returns:
        `{output path: array}` in float64.

    Example:
        >>> square = lambda inputs: {"y": inputs["x"] ** 2}
        >>> finite_difference_jvp(square, {"x": 3.0}, {"x"}, {"y"}, {"x": 1.0})["y"].round(6)
        np.float64(6.0)
    """
    sampler = _sampler(
        apply_fn, inputs, jvp_inputs, jvp_outputs, algorithm, eps, executor, show_progress
    )
    check_keys(tangent_vector, canonical(jvp_inputs), "tangent_vector")
    tangent = sampler.program.layout.join(tangent_vector)
    if np.iscomplexobj(tangent):
        raise InputError(
            "tangent_vector must be real, like the inputs that it moves; found complex numbers.",
            code="vector_not_real",
        )
    parts = _directions(sampler, tangent)
    moves = [part.move for part in parts]
    one_sided = [part.one_sided for part in parts]
    slopes = [
        each.over(_distance(each.moved, part.direction))
        for part, found in zip(parts, sampler.differences(moves, one_sided), strict=True)
        for each in found
    ]
    product = sampler.outputs.split(sum(slopes, np.zeros(sampler.outputs.size)))
    # The long vector is complex as soon as one output is; the imaginary parts of the others are zero.
    return {
        path: part if path in sampler.complex_outputs else part.real
        for path, part in product.items()
    }


def _sampler(
    apply_fn: Apply,
    inputs: Any,
    input_paths: Collection[str],
    output_paths: Collection[str],
    algorithm: Algorithm,
    eps: Eps,
    executor: Executor | None,
    show_progress: bool,
) -> Sampler:
    stencil = find_stencil(algorithm)
    program = Narrowed(apply_fn, inputs, canonical(input_paths), canonical(output_paths))
    return Sampler(program, stencil, eps, executor=executor, show_progress=show_progress)


def _sample_count(algorithm: Algorithm, num_samples: int | None, size: int) -> int:
    """How many random directions to take; 0 when every element gets its own difference."""
    if algorithm != "stochastic":
        return 0
    if num_samples is not None and num_samples < 1:
        raise InputError(
            f"num_samples must be 1 or more; found {num_samples}.", code="bad_num_samples"
        )
    count = max(10, math.isqrt(size)) if num_samples is None else num_samples
    return count if count < size else 0


def _read(sparsity: Sparsity | None, sampler: Sampler) -> Pattern | None:
    if sparsity is None:
        return None
    if isinstance(sparsity, str) and sparsity == "detect":
        return detect_pattern(sampler)
    program = sampler.program
    return read_pattern(sparsity, program.layout, program.output_paths, lambda: sampler.outputs)


def _distance(moved: np.ndarray, direction: np.ndarray) -> float:
    """How far along a direction the inputs really moved, after rounding."""
    # Rounding moves each element by a little more or less than asked. The multiple t for which t·d fits the
    # real move m best is the one of least squares, t = m·d / d·d; it is exact where nothing was rounded.
    length = float(direction @ direction)
    distance = float(moved @ direction) / length if length else 1.0
    if distance == 0:
        raise InputError(
            'The step along the tangent is lost in rounding. Use eps="auto" or a larger eps.',
            code="step_lost",
        )
    return distance


class _Direction(NamedTuple):
    """Part of a tangent, and how the inputs move along it."""

    direction: np.ndarray
    move: np.ndarray
    one_sided: bool


def _directions(sampler: Sampler, tangent: np.ndarray) -> list[_Direction]:
    """Parts that add up to the tangent, each moved by one length."""
    return [
        part
        for length, direction in _lengths(sampler, tangent)
        for same in _same_sense(sampler, direction, length)
        for part in _within_bounds(sampler, same, length)
    ]


def _same_sense(sampler: Sampler, direction: np.ndarray, length: float) -> list[np.ndarray]:
    """A direction, in two parts where it leads some inputs near zero towards zero and others away.

    A step that becomes longer changes no sign, so these parts go in opposite directions.
    """
    reach = np.max(np.abs(length * direction), initial=0.0)
    if not sampler.is_automatic or not sampler.is_short(reach):
        return [direction]
    towards = sampler.origin * direction < 0
    parts = [np.where(towards, direction, 0.0), np.where(towards, 0.0, direction)]
    return [part for part in parts if part.any()]


def _lengths(sampler: Sampler, tangent: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Pairs of a step and the part of the tangent that is moved by it."""
    steps = sampler.steps
    if not sampler.is_automatic and not sampler.stencil.is_complex:
        return [(step, np.where(steps == step, tangent, 0.0)) for step in np.unique(steps)]
    # No element may move by more than its own step. Those that may move much further than others get a
    # part of their own: with the others they would hardly move at all.
    lengths = np.divide(steps, np.abs(tangent), out=np.zeros_like(steps), where=tangent != 0)
    parts = []
    left = tangent != 0
    similar = sampler.similar if sampler.is_automatic else np.inf
    while left.any():
        # Elements from the shortest step to `similar` times that go together, with the shortest: none of them
        # moves by more than its own step, and none by so much less that its part of the change drowns in
        # rounding.
        shortest = float(lengths[left].min())
        together = left & ~(lengths > similar * shortest)  # all of them where one is NaN
        parts.append((shortest, np.where(together, tangent, 0.0)))
        left &= ~together
    return parts or [(1.0, tangent)]


def _within_bounds(sampler: Sampler, direction: np.ndarray, length: float) -> list[_Direction]:
    """The whole direction, or one part each for the elements that can move both ways, forth, and back."""
    move = length * direction
    room = find_room(sampler.program, sampler.stencil, move)
    if not room.one_sided.any():
        return [_Direction(direction, move, False)]
    ratio = np.divide(room.steps, move, out=np.ones_like(move), where=move != 0)
    both = ~room.one_sided
    parts = [_Direction(np.where(both, direction, 0.0), np.where(both, move, 0.0), False)]
    for sign in (1, -1):
        part = room.one_sided & (np.sign(ratio) == sign)
        shortest = np.min(np.abs(ratio[part]), initial=1.0)
        moved = np.where(part, sign * shortest * move, 0.0)
        parts.append(_Direction(np.where(part, direction, 0.0), moved, True))
    return [part for part in parts if part.direction.any()]


def difference_columns(sampler: Sampler, pattern: Pattern | None = None) -> Iterator[Entries]:
    """The entries of the Jacobian, column by column or group by group.

    Columns that touch no common row are perturbed together, so a group of columns costs as many evaluations
    as a single one.

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
    owners = None if pattern is None else _Owners(groups, pattern)
    for group, found in zip(groups, sampler.differences(moves, one_sided, owners), strict=True):
        if len(found) == len(sampler.stencil.terms):
            for difference in found:
                _require_moved(sampler, difference.moved, group)
        _require_fit(sampler, pattern)
        if pattern is None:
            column = sum(each.over(each.moved[group]) for each in found)
            yield Entries(slice(None), group, np.asarray(column))
        else:
            rows, columns = pattern.entries_in(group)
            values = sum(each.over(each.moved[columns], rows) for each in found)
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
    room = find_room(sampler.program, sampler.stencil, sampler.joint_steps)
    generator = np.random.default_rng(seed)
    # Signs, not normal numbers: 1/h is then bounded, and of all distributions with mean zero and variance one
    # this one has the smallest fourth moment, on which the variance of the estimate depends.
    signs = [generator.choice([-1.0, 1.0], size=room.steps.size) for _ in range(count)]
    moves = [np.where(room.one_sided & (sign < 0), 0.0, room.steps * sign) for sign in signs]
    sides = [bool(room.one_sided.any())] * count
    # Times the sign this is the weight. Free element: E[(s/h)(s·h)] = 1. Element at a bound: it moves by h
    # with probability 1/2, with the weight 2/h, so that the mean is 1/2 · (2/h)·h = 1 again.
    weight = np.where(room.one_sided, 2 / room.steps, 1 / room.steps)
    for move, sign, found in zip(moves, signs, sampler.differences(moves, sides), strict=True):
        _require_moved(sampler, found[0].moved, np.flatnonzero(move))
        if not move.any():  # all are at bounds, and none moves: there is no change to divide
            yield np.zeros(sampler.outputs.size), weight * sign
            continue
        slope = sum(each.over(each.moved @ move / (move @ move)) for each in found)
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


class _Owners(Sequence[np.ndarray]):
    """For every group of columns, which of them each row depends on."""

    def __init__(self, groups: Sequence[Any], pattern: Pattern) -> None:
        self._groups = groups
        self._pattern = pattern

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: Any) -> Any:
        rows, columns = self._pattern.entries_in(self._groups[index])
        owner = np.full(self._pattern.shape[0], -1)
        owner[rows] = columns
        return owner


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
    # The seed is fixed: equal inputs give equal patterns, in every process. A change that is lost in rounding
    # would be taken for "does not depend", hence the long joint steps and lengths that are at least half of
    # them.
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

"""Columns of a Jacobian from evaluations of the program.

Columns that touch no common row are perturbed together, so a group of columns costs as many evaluations
as a single one. What comes out is a stream of matrix entries; whether they are stored densely, sparsely,
or contracted with a cotangent at once is the consumer's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

import numpy as np

from chainrule._errors import CapabilityError, InputError
from chainrule.runtime._derivatives._blocks import Entries
from chainrule.runtime._derivatives._layout import Layout
from chainrule.runtime._derivatives._program import Program, evaluate_all
from chainrule.runtime._derivatives._progress import track
from chainrule.runtime._derivatives._sparsity import Pattern
from chainrule.runtime._derivatives._stencils import Eps, Stencil, choose_steps, coarsest

__all__ = ["Sampler", "difference_columns", "random_directions"]


class Sampler:
    """Weighted differences of the program's outputs along directions, for one stencil.

    Args:
        program: what to evaluate.
        stencil: which differences.
        executor: where evaluations run.
        show_progress: whether long work shows a bar.
    """

    def __init__(
        self,
        program: Program,
        stencil: Stencil,
        *,
        executor: Executor | None = None,
        show_progress: bool = True,
    ) -> None:
        self.program = program
        self.stencil = stencil
        self.executor = executor
        self.show_progress = show_progress
        self.origin = program.layout.join(program.base)
        self._outputs: Layout | None = None

    @cached_property
    def base(self) -> dict[str, np.ndarray]:
        """The outputs of the unperturbed program."""
        point = self.origin.astype(complex) if self.stencil.is_complex else self.origin
        return next(evaluate_all(self.program, [point]))

    @property
    def outputs(self) -> Layout:
        """The layout of the outputs, known from the first evaluation on."""
        return self._outputs or Layout.of(self.base)

    def steps(self, eps: Eps) -> np.ndarray:
        """The step of every input element as one vector.

        Automatic steps look at the outputs as well: a program that answers in float32 has the rounding
        errors of float32, whatever it was asked in.
        """
        program = self.program
        precision = program.precision
        if eps == "auto" and not self.stencil.is_complex:
            answered = [output.dtype for output in self.base.values()]
            precision = {path: coarsest(dtype, *answered) for path, dtype in precision.items()}
        return program.layout.join(choose_steps(self.stencil, eps, program.base, precision))

    def differences(
        self, moves: Sequence[np.ndarray]
    ) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """For every move: `(weighted output difference, input difference)` of each quotient.

        Args:
            moves: displacements of the inputs for a step of one, as long vectors.
        """
        nodes = self.stencil.nodes
        made: deque[np.ndarray] = deque()
        points = self._points(moves, nodes, made)
        results = evaluate_all(self.program, points, self.executor)
        total = len(moves) * len(nodes)
        results = track(results, "finite differences", total, show=self.show_progress)
        base = {0: (self.origin, self._flatten(self.base))} if self.stencil.needs_base else {}
        for move in moves:
            at = dict(base)
            for node in nodes:
                value = self._flatten(next(results))
                at[node] = (made.popleft(), value)
            if self.stencil.is_complex:
                yield [(at[1][1].imag, move)]
            else:
                yield [self._difference(at[p], at[m], w) for p, m, w in self.stencil.terms]

    def _points(
        self, moves: Sequence[np.ndarray], nodes: tuple[int, ...], made: deque[np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Where to evaluate; `made` keeps the points until their results are there."""
        for move in moves:
            for node in nodes:
                made.append(self._point(move, node))
                yield made[-1]

    def _point(self, move: np.ndarray, node: int) -> np.ndarray:
        if self.stencil.is_complex:
            return self.origin + 1j * move
        return self.program.round(self.origin + node * move)

    @staticmethod
    def _difference(
        plus: tuple[np.ndarray, np.ndarray], minus: tuple[np.ndarray, np.ndarray], weight: float
    ) -> tuple[np.ndarray, np.ndarray]:
        return weight * (plus[1] - minus[1]), plus[0] - minus[0]

    def _flatten(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        layout = Layout.of(outputs)
        if self._outputs is None:
            self._outputs = layout
        elif layout != self._outputs:
            raise CapabilityError(
                "The outputs changed shape under a small step: "
                f"{dict(zip(layout.paths, layout.shapes, strict=True))} after "
                f"{dict(zip(self._outputs.paths, self._outputs.shapes, strict=True))}. "
                "A derivative needs outputs whose shape does not depend on the inputs' values.",
                code="output_shape_changed",
            )
        if self.stencil.is_complex:
            self._require_complex(outputs)
        joined = layout.join(outputs)
        return joined.astype(np.result_type(joined, np.float64))

    @staticmethod
    def _require_complex(outputs: dict[str, np.ndarray]) -> None:
        for path, output in outputs.items():
            if output.dtype.kind != "c":
                raise CapabilityError(
                    f"Output {path!r} came back as {output.dtype} from complex inputs: the program "
                    "drops imaginary parts (a cast, abs or real storage), so the complex step would "
                    'report zero. Use algorithm="richardson", or leave this output out.',
                    code="complex_step_unsupported",
                    path=path,
                )


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
    for move, terms in zip(moves, sampler.differences(moves), strict=True):
        (change, _), *_ = terms
        yield change / 2, 1 / move


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

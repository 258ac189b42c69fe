"""Evaluating a program around a point and taking differences: the numerical core of finite differences."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import NamedTuple

import numpy as np

from chainrule._errors import CapabilityError
from chainrule.runtime._derivatives._layout import Layout
from chainrule.runtime._derivatives._program import Program, evaluate_all
from chainrule.runtime._derivatives._progress import track
from chainrule.runtime._derivatives._room import find_room
from chainrule.runtime._derivatives._stencils import (
    Eps,
    Stencil,
    choose_steps,
    coarsest,
    is_automatic,
)
from chainrule.runtime._progress import unheard
from chainrule.runtime._schema import rounding_unit

DOUBT = 0.1
"""Quotients over one step and over two may differ by this much of themselves. The error of the formula
that extrapolates from them is about the square of that."""
SHORTER = 16
LOUD = 1e4
"""A change of the outputs that is this many times their rounding error is known to four digits."""
LONGER = 1024


class Difference(NamedTuple):
    """One quotient of a stencil, still undivided: the derivative is Σ weight · change / moved.

    Attributes:
        weight: in the sum.
        change: of the outputs, as one long vector.
        moved: how far the inputs really moved, after rounding.
    """

    weight: float
    change: np.ndarray
    moved: np.ndarray


class Sampler:
    """Differences of the program's outputs along directions, for one stencil.

    Args:
        program: what to evaluate.
        stencil: which differences.
        eps: the step, as in `finite_difference_jacobian`.
        base: the outputs of the unperturbed program, where they are known.
        executor: where evaluations run.
        show_progress: whether long work shows a bar.
    """

    def __init__(
        self,
        program: Program,
        stencil: Stencil,
        eps: Eps,
        *,
        base: dict[str, np.ndarray] | None = None,
        executor: Executor | None = None,
        show_progress: bool = True,
    ) -> None:
        self._given_base = base
        self.program = program
        self.stencil = stencil
        self.eps = eps
        self.executor = executor
        self.show_progress = show_progress
        self.origin = program.origin
        self._outputs: Layout | None = None

    @cached_property
    def base(self) -> dict[str, np.ndarray]:
        """The outputs of the unperturbed program."""
        if self._given_base is not None:
            return self._given_base
        point = self.origin.astype(complex) if self.stencil.is_complex else self.origin
        with unheard():
            return next(evaluate_all(self.program, [point]))

    @property
    def outputs(self) -> Layout:
        """The layout of the outputs, known from the first evaluation on."""
        return self._outputs or Layout.of(self.base)

    @cached_property
    def is_automatic(self) -> bool:
        """Whether the length of some steps is left to us; the complex step has nothing to choose."""
        return is_automatic(self.eps) and not self.stencil.is_complex

    @cached_property
    def steps(self) -> np.ndarray:
        """The step of every input element as one vector.

        Automatic steps look at the outputs as well: a program that answers in float32 has the rounding
        errors of float32, whatever it was asked in.
        """
        program = self.program
        precision = program.precision
        if self.is_automatic:
            answered = [output.dtype for output in self.base.values()]
            precision = {path: coarsest(dtype, *answered) for path, dtype in precision.items()}
        return program.layout.join(choose_steps(self.stencil, self.eps, program.base, precision))

    def differences(
        self, moves: Sequence[np.ndarray], one_sided: Sequence[bool] | None = None
    ) -> Iterator[list[Difference]]:
        """The quotients of the stencil along every move.

        An automatic step supposes that the outputs vary on the scale of the inputs. What was found tells
        where that is not so, and the step is changed: an input near zero may move by so little that the
        outputs do not notice, and far from zero the outputs may vary within one step.

        Args:
            moves: displacements of the inputs for a step of one, as long vectors.
            one_sided: for every move, whether the inputs can move in its direction only.
        """
        sides = [False] * len(moves) if one_sided is None else one_sided
        for move, side, found in zip(moves, sides, self._differences(moves, sides), strict=True):
            if not self.is_automatic or not move.any():
                yield found
                continue
            with unheard():
                move, side, found = self._lengthened(move, side, found)
                yield self._shortened(move, side, found)

    def _differences(
        self, moves: Sequence[np.ndarray], sides: Sequence[bool]
    ) -> Iterator[list[Difference]]:
        stencils = [self.stencil.one_sided if side else self.stencil for side in sides]
        made: deque[np.ndarray] = deque()
        points = self._points(moves, stencils, made)
        results = evaluate_all(self.program, points, self.executor)
        total = sum(len(stencil.nodes) for stencil in stencils)
        results = track(results, "finite differences", total, show=self.show_progress)
        needs_base = any(stencil.needs_base for stencil in stencils)
        base = {0: (self.origin, self._flatten(self.base))} if needs_base else {}
        for move, stencil in zip(moves, stencils, strict=True):
            at = dict(base)
            for node in stencil.nodes:
                value = self._flatten(next(results))
                at[node] = (made.popleft(), value)
            if stencil.is_complex:
                yield [Difference(1.0, at[1][1].imag, move)]
            else:
                yield [
                    Difference(weight, at[plus][1] - at[minus][1], at[plus][0] - at[minus][0])
                    for plus, minus, weight in stencil.terms
                ]

    def _lengthened(
        self, move: np.ndarray, side: bool, found: list[Difference]
    ) -> tuple[np.ndarray, bool, list[Difference]]:
        """The differences with the shortest step that the outputs notice.

        This is about steps that a program whose outputs vary on the scale of one would not notice; such a
        program is the most that is tried for. A column of zeros is asked for once more at most.
        """
        longest = self._unit ** (1 / (self.stencil.order + 1))
        while (reach := np.max(np.abs(move))) < min(longest, LOUD * self._unit):
            if self._is_loud(found):
                break
            longer, is_one_sided = self._away_from_zero(move * min(LONGER, longest / reach))
            stencil = self.stencil.one_sided if is_one_sided else self.stencil
            room = find_room(self.program, stencil, longer)
            ratio = room.steps[move != 0] / move[move != 0]
            if np.ptp(ratio) > 1e-6 or np.max(np.abs(ratio)) <= 1:
                break  # no room for a longer step in this direction
            is_one_sided |= bool(room.one_sided.any())
            (candidate,) = self._differences([room.steps], [is_one_sided])
            if not all(np.isfinite(each.change).all() for each in candidate):
                break
            move, side, found = room.steps, is_one_sided, candidate
        return move, side, found

    def _away_from_zero(self, move: np.ndarray) -> tuple[np.ndarray, bool]:
        """A move that changes no sign, and whether it is in one direction only.

        Many programs take positive numbers only (a concentration, a length), with or without a bound in
        their schema.
        """
        crosses = (np.abs(move) * max(self.stencil.one_sided.nodes) >= np.abs(self.origin)) & (
            self.origin * move != 0
        )
        if not crosses.any():
            return move, False
        return move * np.sign(self.origin[crosses][0] * move[crosses][0]), True

    def _is_loud(self, found: list[Difference]) -> bool:
        """Whether some output changes by much more than it is rounded."""
        base = self.outputs.join(self.base)
        return bool(np.any(np.abs(found[0].change) > LOUD * self._unit * np.abs(base)))

    def _shortened(self, move: np.ndarray, side: bool, found: list[Difference]) -> list[Difference]:
        """The differences with the longest step whose quotients agree.

        Only formulas with quotients over two lengths (Richardson) can tell. Where no step makes them agree,
        the program is not smooth, or has noise, which a short step would only enlarge.
        """
        if len(self.stencil.terms) == 1 or not self._doubt(found, move) > DOUBT:
            return found
        # Not below unit^(2/3) of the scale of the inputs, where rounding leaves a third of the digits.
        shortest = self._unit ** (2 / 3 - 1 / (self.stencil.order + 1))
        length = 1 / SHORTER
        while length >= shortest:
            (shorter,) = self._differences([length * move], [side])
            if self._doubt(shorter, move) <= DOUBT:
                return shorter
            length /= SHORTER
        return found

    def _doubt(self, found: list[Difference], move: np.ndarray) -> float:
        """By how much the first two quotients contradict each other, for the worst output path.

        Rounding is no contradiction: what it can do to a difference is taken off.
        """
        # Along the move; a group of columns moves by the same multiple of its steps.
        distances = [float(each.moved @ move) / float(move @ move or 1.0) for each in found[:2]]
        if 0 in distances:
            return 0.0
        first, second = (
            self.outputs.split(each.change / distance)
            for each, distance in zip(found[:2], distances, strict=True)
        )
        noise = 4 * self._unit / min(map(abs, distances))
        return max(
            (
                _relative(np.abs(first[path] - second[path]), noise * np.abs(base), first[path])
                for path, base in self.base.items()
                if base.size
            ),
            default=0.0,
        )

    @cached_property
    def _unit(self) -> float:
        dtypes = (*self.program.precision.values(), *(out.dtype for out in self.base.values()))
        return rounding_unit(coarsest(*dtypes))

    def _points(
        self, moves: Sequence[np.ndarray], stencils: Sequence[Stencil], made: deque[np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Where to evaluate; `made` keeps the points until their results are there."""
        for move, stencil in zip(moves, stencils, strict=True):
            for node in stencil.nodes:
                made.append(self._point(move, node))
                yield made[-1]

    def _point(self, move: np.ndarray, node: int) -> np.ndarray:
        if self.stencil.is_complex:
            return self.origin + 1j * move
        return self.program.round(self.origin + node * move)

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
        return layout.join(outputs)

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


def _relative(difference: np.ndarray, noise: np.ndarray, quotient: np.ndarray) -> float:
    """The largest difference beyond the noise, relative to the largest quotient."""
    beyond = np.max(np.maximum(difference - noise, 0.0))
    return float(beyond / np.max(np.abs(quotient))) if beyond > 0 else 0.0

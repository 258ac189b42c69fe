"""Evaluating a program around a point and taking differences: the numerical core of finite differences.

Program    a component's `apply` as a function of a few leaves, with the input schema in front of it
Room       steps that stay inside the bounds of the input schema
Sampler    differences of the outputs along directions, with steps that are checked against the outputs
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from chainrule._errors import CapabilityError, InputError
from chainrule._trees import set_at_path
from chainrule.runtime._derivatives._layout import Layout, read_arrays
from chainrule.runtime._derivatives._stencils import (
    Eps,
    Stencil,
    choose_steps,
    coarsest,
    is_automatic,
)
from chainrule.runtime._own_arrays import own_copy
from chainrule.runtime._progress import track, unheard
from chainrule.runtime._schema import describe_array, number_kind, rounding_unit

IN_FLIGHT = 64
"""Points handed to an executor and not yet answered; each holds a copy of the perturbed leaves."""


class Program:
    """`apply_fn` narrowed to some input and output paths.

    Values go through the input schema again at every point, so that an author's validators (and the fields
    they compute) see what a real caller would send. The schema also decides the precision: a point is
    offered in float64, and where the schema narrows it the point is rounded first, so that the step that
    is divided by is the step that was really taken.

    Args:
        apply_fn: function of the inputs, returning a model or a mapping.
        inputs: a validated model, or nested mappings.
        input_paths: the leaves that vary, in canonical order.
        output_paths: the leaves that are looked at, in canonical order.
        keep_precision: offer points in each leaf's own dtype instead of float64; for inputs whose
            schema is out of sight, in a component that would round them by itself.
        validate: raises `InputError` for inputs that the program refuses; for inputs that are not a model,
            which validates itself.
    """

    def __init__(
        self,
        apply_fn: Callable[[Any], Any],
        inputs: Any,
        input_paths: tuple[str, ...],
        output_paths: tuple[str, ...],
        *,
        keep_precision: bool = False,
        validate: Callable[[Any], Any] | None = None,
    ) -> None:
        self._keep_precision = keep_precision
        self._validate_plain = validate
        self.apply_fn = apply_fn
        self.inputs = inputs
        self.output_paths = output_paths
        given = read_arrays(inputs, input_paths)
        for path, array in given.items():
            _require_real(array, path)
        self.precision = {path: array.dtype for path, array in given.items()}
        self.base = {path: array.astype(np.float64) for path, array in given.items()}
        self.layout = Layout.of(self.base)
        self.origin = self.layout.join(self.base)

    @cached_property
    def _dumped(self) -> Any:
        return self.inputs.model_dump() if _is_model(self.inputs) else self.inputs

    @cached_property
    def _kept(self) -> dict[str, np.dtype]:
        """The dtype that the schema makes of a float64 value at each path."""
        if self._keep_precision:
            return self.precision
        offered = self._validate(self.base)
        return {path: a.dtype for path, a in read_arrays(offered, self.layout.paths).items()}

    def _validate(self, values: Mapping[str, np.ndarray]) -> Any:
        tree = set_at_path(self._dumped, values)
        if not _is_model(self.inputs):
            return own_copy(tree)
        return type(self.inputs).model_validate(own_copy(tree), context={"own": True})

    def round(self, point: np.ndarray) -> np.ndarray:
        """The nearest point that the input schema can hold, in float64."""
        if all(dtype == np.float64 for dtype in self._kept.values()):
            return point
        parts = self.layout.split(point)
        rounded = {path: part.astype(self._kept[path]) for path, part in parts.items()}
        return self.layout.join(rounded)

    def allows(self, point: np.ndarray) -> bool:
        """Whether the input schema accepts a point; plain inputs without a schema may be anything."""
        if self._validate_plain is None and not _is_model(self.inputs):
            return True
        try:
            inputs = self.inputs_at(point)
            if self._validate_plain is not None:
                self._validate_plain(inputs)
        except (ValidationError, InputError):
            return False
        return True

    def inputs_at(self, point: np.ndarray) -> Any:
        """The inputs with a point (real, or complex for the complex step) at the varying leaves.

        Every call gets arrays of its own, so a program that works in place cannot spoil the next one.
        """
        values = self.layout.split(point)
        if np.iscomplexobj(point):
            # No schema of real numbers lets a complex one pass: the author's code gets it directly.
            return own_copy(set_at_path(self.inputs, values))
        kept = {path: value.astype(self._kept[path]) for path, value in values.items()}
        return self._validate(kept)


def _is_model(tree: Any) -> bool:
    """Whether inputs are a pydantic model rather than plain nested data."""
    return hasattr(type(tree), "model_validate")


def _require_real(array: np.ndarray, path: str) -> None:
    if number_kind(array.dtype) != "f":
        raise InputError(
            f"Finite differences need real floating-point inputs; {path!r} is {describe_array(array)}. "
            "Leave it out of the differentiated inputs.",
            code="path_not_differentiable",
            path=path,
        )


def _evaluate(
    apply_fn: Callable[[Any], Any], inputs: Any, output_paths: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """One evaluation. A module-level function of plain arguments, so that a process pool can run it."""
    outputs = read_arrays(apply_fn(inputs), output_paths)
    # Copied: a program may hand out the same buffer at every call, and differences need two of them.
    return {path: np.array(output) for path, output in outputs.items()}


def evaluate_all(
    program: Program, points: Iterable[np.ndarray], executor: Executor | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """The selected outputs at every point, in order.

    Args:
        program: what to evaluate.
        points: where, as long vectors of `program.layout`.
        executor: anything with `submit`; without one the points are evaluated one after the other.
    """
    if executor is None:
        for point in points:
            yield _evaluate(program.apply_fn, program.inputs_at(point), program.output_paths)
        return
    pending: deque[Future[dict[str, np.ndarray]]] = deque()
    try:
        for point in points:
            arguments = (program.apply_fn, program.inputs_at(point), program.output_paths)
            pending.append(executor.submit(_evaluate, *arguments))
            if len(pending) >= IN_FLIGHT:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # After a failure there is no use for the rest.
        for future in pending:
            future.cancel()


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

    A bound (`Field(ge=0, le=1)`, or a validator of the author's) is found by asking: the schema validates
    a point or refuses it. All elements are moved at once first, which settles the usual case with two
    questions. Only where that is refused, the elements are halved until those at a bound are known.

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


DOUBT = 0.1
"""Quotients over one step and over two may differ by this much of themselves. The error of the formula
that extrapolates from them is about the square of that."""
SHORTER = 16
"""The factor between a step that is too long and the next one that is tried."""
LOUD = 1e4
"""A change of the outputs that is this many times their rounding error is known to four digits."""
LONGER = 1024
"""The factor between a step that the outputs do not notice and the next one that is tried."""


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
        # The best step for outputs that vary on the scale of one, see `_stencils._automatic`.
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

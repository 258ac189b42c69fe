"""Evaluating a program around a point and taking differences: the numerical core of finite differences.

Narrowed   a component's `apply` as a function of a few leaves, with the input schema in front of it
Room       steps that stay inside the bounds of the input schema
Sampler    differences of the outputs along directions, with steps that are checked against the outputs
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from chainrule._describe import describe_array
from chainrule._device import own_copy
from chainrule._errors import CapabilityError, InputError
from chainrule._progress import track, unheard
from chainrule._trees import matches_pattern, set_at_path
from chainrule.runtime._derivatives._layout import Layout, complex_paths, read_arrays
from chainrule.runtime._derivatives._stencils import (
    Eps,
    Stencil,
    choose_steps,
    coarsest,
    is_automatic,
)
from chainrule.runtime._schema import Bounds, array_leaves, number_kind, rounding_unit

IN_FLIGHT = 64
"""Points handed to an executor and not yet answered; each holds a copy of the perturbed leaves."""


class Narrowed:
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
        keep_precision: offer points in each leaf's own dtype instead of float64; for inputs whose schema is
            not here, of a component that would round them by itself.
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

    def within_bounds(self, point: np.ndarray) -> np.ndarray:
        """Which elements of a point keep the bounds that are declared (`Field(ge=0)`)."""
        if not _is_model(self.inputs):
            return np.ones(point.shape, bool)
        declared = array_leaves(type(self.inputs))
        inside = [np.ones(0, bool)]
        for path, part in self.layout.split(point).items():
            specs = (spec for pattern, spec in declared.items() if matches_pattern(path, pattern))
            bounds = next((spec.bounds for spec in specs), None) or Bounds()
            inside.append(bounds.allowed(part.ravel()))
        return np.concatenate(inside)

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
    program: Narrowed, points: Iterable[np.ndarray], executor: Executor | None = None
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


def find_room(program: Narrowed, stencil: Stencil, steps: np.ndarray) -> Room:
    """Fit steps to the bounds of the inputs.

    A bound (`Field(ge=0, le=1)`, or a validator of the author's) is found by asking: the schema validates
    a point or refuses it. All elements are moved at once first, which settles the usual case with two
    questions. Where that is refused, the elements outside of declared bounds are known at once. The others
    are halved until those that a validator refuses are known.

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


def _may_move(program: Narrowed, stencil: Stencil, moves: np.ndarray) -> np.ndarray:
    """Which elements may be at all nodes of a stencil, one element at a time."""
    allowed = np.ones(moves.shape, bool)
    for extreme in {min(0, *stencil.nodes), max(0, *stencil.nodes)} - {0}:
        _mark_refused(program, extreme * moves, np.flatnonzero(moves), allowed)
    return allowed


def _mark_refused(
    program: Narrowed, moves: np.ndarray, elements: np.ndarray, allowed: np.ndarray
) -> None:
    point = program.origin.copy()
    with np.errstate(invalid="ignore"):  # inputs that are infinite stay so, or become NaN
        point[elements] += moves[elements]
    if not elements.size or program.allows(point):
        return
    if elements.size == 1:
        allowed[elements] = False
        return
    inside = program.within_bounds(point)[elements]
    if not inside.all():
        allowed[elements[~inside]] = False
        _mark_refused(program, moves, elements[inside], allowed)
        return
    for half in np.array_split(elements, 2):
        _mark_refused(program, moves, half, allowed)


def _require_room(program: Narrowed, steps: np.ndarray, stuck: np.ndarray) -> None:
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
"""Quotients over two lengths, or to the two sides, may differ by this much of themselves: by δ = h·f″/f′. The
next term, which the formula does not cancel, is h²·f‴/6f′, and of the order of δ²/6 where f varies on one
scale. So the error is below 0.2 % where there is no doubt."""
AGREE = 1e-3
"""Derivatives with a step and with a shorter one that differ by less than this are the same. The difference
is the truncation error of the longer step, c·hᵖ·(1 − SHORTER⁻ᵖ), so this is the error that is accepted."""
SHORTER = np.e**2
"""The factor between a step that is too long and the next one that is tried. It is irrational: of a periodic
program, two steps in the ratio of integers can be multiples of the period and agree on nothing but that."""
LONGER = 1e5
"""The factor between a step that the outputs hardly notice and the next that is tried. In double precision
there are nine decades from the step of an input of 1e-9 to the best one for the scale one: two trials."""
ROUNDED = 4
"""Half units of rounding in a difference of two outputs: a program is taken to round each of them twice."""


class Difference(NamedTuple):
    """One quotient of a stencil, still undivided: the derivative is Σ weight · change / moved.

    Attributes:
        weight: in the sum; one per output where the outputs have different steps, 0 for those that do
            not use this quotient.
        change: of the outputs, as one long vector.
        moved: how far the inputs really moved, after rounding.
    """

    weight: float | np.ndarray
    change: np.ndarray
    moved: np.ndarray

    def over(self, distance: Any, rows: Any = slice(None)) -> np.ndarray:
        """The part of the sum that some outputs have from this quotient."""
        change = self.change[rows]
        if not isinstance(self.weight, np.ndarray):
            return np.asarray(self.weight * (change / distance))
        # Not a product with 0: a step that is not used may have led to inf or not a number.
        weight = self.weight[rows]
        used = weight != 0
        out = np.zeros(change.shape, np.result_type(change, float))
        return np.divide(weight * np.where(used, change, 0.0), distance, out=out, where=used)


class _Level(NamedTuple):
    """The quotients with one length of the step.

    Attributes:
        move: displacement of the inputs.
        one_sided: whether the inputs move in its direction only.
        found: the quotients of the stencil.
        bend: f(x + h) + f(x - h) - 2 f(x), where the three are known.
    """

    move: np.ndarray
    one_sided: bool
    found: list[Difference]
    bend: np.ndarray | None


class Sampler:
    """Differences of the program's outputs along directions, for one stencil.

    Args:
        program: what to evaluate.
        stencil: which differences.
        eps: the step, as in `finite_difference_jacobian`.
        base: the outputs of the unperturbed program, where they are known.
        spare: bound on the evaluations that changing the length of steps may take.
        executor: where evaluations run.
        show_progress: whether long work shows a bar.

    Attributes:
        complex_outputs: the paths that were complex in some evaluation.
    """

    def __init__(
        self,
        program: Narrowed,
        stencil: Stencil,
        eps: Eps,
        *,
        base: dict[str, np.ndarray] | None = None,
        spare: float = np.inf,
        executor: Executor | None = None,
        show_progress: bool = True,
    ) -> None:
        self._given_base = base
        self._spare = spare
        self.program = program
        self.stencil = stencil
        self.eps = eps
        self.executor = executor
        self.show_progress = show_progress
        self.origin = program.origin
        self._outputs: Layout | None = None
        self.complex_outputs: set[str] = set()

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
        errors of float32, also for inputs in float64.
        """
        program = self.program
        precision = program.precision
        if self.is_automatic:
            answered = [output.dtype for output in self.base.values()]
            precision = {path: coarsest(dtype, *answered) for path, dtype in precision.items()}
        return program.layout.join(choose_steps(self.stencil, self.eps, program.base, precision))

    @property
    def joint_steps(self) -> np.ndarray:
        """Steps for moving all elements at once, where a much shorter one would not be noticed.

        Which outputs change is what is asked for, not by how much. So a step of less than a hundredth of the
        longest becomes that long; it is then still shorter than the best one for programs of the scale one.
        """
        if not self.is_automatic:
            return self.steps
        return np.maximum(self.steps, 0.01 * min(self._longest, np.max(self.steps, initial=0.0)))

    def changes(self, moves: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """The change of the outputs along every move, for the first quotient of the stencil."""
        for level in self._levels(moves, [False] * len(moves)):
            yield level.found[0].change

    def differences(
        self,
        moves: Sequence[np.ndarray],
        one_sided: Sequence[bool] | None = None,
        owners: Sequence[np.ndarray] | None = None,
    ) -> Iterator[list[Difference]]:
        """The quotients of the stencil along every move.

        An automatic step supposes that the outputs vary on the scale of the inputs. What was found tells
        where that is not so, and the step is changed: an input near zero may move by so little that an
        output does not notice, and far from zero an output may vary within one step. Every output has
        the step that suits it, because one of them may follow the input's logarithm and another its phase.

        Args:
            moves: displacements of the inputs for a step of one, as long vectors.
            one_sided: for every move, whether the inputs can move in its direction only.
            owners: for every move of several elements that have no output in common, the element that each
                output depends on (-1 for none); their steps are then changed one by one. Without it the
                direction of a move is kept.
        """
        sides = [False] * len(moves) if one_sided is None else one_sided
        for number, (move, level) in enumerate(zip(moves, self._levels(moves, sides), strict=True)):
            if not self.is_automatic or not move.any():
                yield level.found
                continue
            owner = None if owners is None else owners[number]
            with unheard(), np.errstate(all="ignore"):
                found = _Adaptation(self, level, owner).run()
            yield found

    def can_change(self) -> bool:
        """Whether there are evaluations left for a step of another length."""
        return self._spare >= len(self.stencil.one_sided.nodes)

    def _level(self, move: np.ndarray, one_sided: bool) -> _Level:
        self._spare -= len((self.stencil.one_sided if one_sided else self.stencil).nodes)
        (level,) = self._levels([move], [one_sided])
        return level

    def _levels(self, moves: Sequence[np.ndarray], sides: Sequence[bool]) -> Iterator[_Level]:
        stencils = [self.stencil.one_sided if side else self.stencil for side in sides]
        made: deque[np.ndarray] = deque()
        points = self._points(moves, stencils, made)
        results = evaluate_all(self.program, points, self.executor)
        total = sum(len(stencil.nodes) for stencil in stencils)
        results = track(results, "finite differences", total, show=self.show_progress)
        needs_base = self.is_automatic or any(stencil.needs_base for stencil in stencils)
        base = {0: (self.origin, self._flatten(self.base))} if needs_base else {}
        for move, side, stencil in zip(moves, sides, stencils, strict=True):
            at = dict(base)
            for node in stencil.nodes:
                value = self._flatten(next(results))
                at[node] = (made.popleft(), value)
            if stencil.is_complex:
                # (f(x + ih) - f(x - ih)) / 2ih = Im f(x + ih) / h, since f(x - ih) is the conjugate. By
                # Taylor this is f′ - h²f‴/6 + …, and with h = 1e-100 the second term is below everything that
                # a double can hold beside f′.
                yield _Level(move, side, [Difference(1.0, at[1][1].imag, move)], None)
                continue
            with np.errstate(invalid="ignore"):  # differences of infinite numbers are NaN
                found = [
                    Difference(weight, at[plus][1] - at[minus][1], at[plus][0] - at[minus][0])
                    for plus, minus, weight in stencil.terms
                ]
                has_sides = {-1, 0, 1} <= at.keys()
                bend = at[1][1] + at[-1][1] - 2 * at[0][1] if has_sides else None
            yield _Level(move, side, found, bend)

    def is_short(self, reach: Any) -> Any:
        """Whether a step may become longer: outputs that vary on the scale of one hardly notice it."""
        # An output of size one that varies on the scale of one changes by about `reach`, with a rounding
        # error of about `unit`. The error is the part unit / reach of the change; the step is too short where
        # that exceeds `too_quiet`.
        return (reach > 0) & (reach < self._longest) & (self._unit > self.too_quiet * reach)

    @cached_property
    def too_quiet(self) -> float:
        """The rounding error, as a part of a change of the outputs, from which on the step is too short.

        It is unit^(order/(order + 1)) with the best step; this allows for three digits in ten less.
        """
        # With the step h = u^(1/(p+1)) the rounding part u/h is u^(p/(p+1)): p/(p+1) of all digits are right.
        # With 0.7 of that exponent three in ten of these are lost, and beyond that a longer step is looked
        # for.
        return float(self._unit ** (0.7 * self.stencil.order / (self.stencil.order + 1)))

    @cached_property
    def similar(self) -> float:
        """How far below its own step an element may move with others and not be too quiet."""
        order = self.stencil.order
        # The rounding part grows like 1/h. It is u^(p/(p+1)) at the own step, so it reaches `too_quiet` at a
        # step that is shorter by the quotient of the two: 1.6e3 for central differences in double precision.
        return float(self.too_quiet / self._unit ** (order / (order + 1)))

    @cached_property
    def _longest(self) -> float:
        """The best step for outputs that vary on the scale of one, see `_stencils._automatic`."""
        return self._unit ** (1 / (self.stencil.order + 1))

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
        with np.errstate(invalid="ignore"):
            return self.program.round(self.origin + node * move)

    def _flatten(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        layout = Layout.of(outputs)
        self.complex_outputs |= complex_paths(outputs)
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


class _Adaptation:
    """Finds the step that suits every output, along one move.

    The rounding error of a quotient is about unit·|f|/h, which is known; its truncation error shows when a
    step is changed. So an output that changes by little more than its rounding gets a longer step, up to the
    best one for outputs that vary on the scale of one, as long as the derivatives are the same within the
    rounding error of the shorter step. An output that varies within a step gets a shorter one, until the
    derivatives with two successive steps agree.

    Args:
        sampler: makes the evaluations.
        level: what was found with the first step.
        owner: as in `Sampler.differences`.
    """

    def __init__(self, sampler: Sampler, level: _Level, owner: np.ndarray | None) -> None:
        self._sampler = sampler
        self._owner = owner
        self._move = level.move
        self._unit = sampler._unit
        self._base = np.abs(sampler.outputs.join(sampler.base))
        self._levels = [level]
        self._chosen = np.zeros(self._base.shape, np.int64)

    def run(self) -> list[Difference]:
        """The quotients, with weights that choose a step for every output."""
        self._lengthen()
        self._shorten()
        used = np.unique(self._chosen)
        if used.size <= 1:
            return self._levels[used[0] if used.size else 0].found
        return [
            each._replace(weight=np.where(self._chosen == index, each.weight, 0.0))
            for index in used
            for each in self._levels[index].found
        ]

    def _lengthen(self) -> None:
        quiet = self._is_quiet(self._levels[0])
        # A program that loses eight more bits than `_noise` supposes has 256 times its rounding error, and a
        # longer step is right for it. With two quotients or more, `_shorten` finds a step that is too long;
        # a forward difference has one, so there the estimate is taken as it is.
        margin = 1 if self._sampler.stencil.order == 1 else 256
        while quiet.any() and self._sampler.can_change():
            level, longer = self._levels[-1], self._longer(self._levels[-1].move)
            if longer is None:
                return
            slope, before = self._slope(longer), self._slope(level)
            quiet &= np.abs(slope - before) <= margin * self._noise(level)
            self._levels.append(longer)
            self._chosen[quiet] = len(self._levels) - 1
            quiet &= self._is_quiet(longer)

    def _is_quiet(self, level: _Level) -> np.ndarray:
        """The outputs that change by too little for their rounding."""
        return self._unit * self._base >= self._sampler.too_quiet * np.abs(level.found[0].change)

    def _longer(self, move: np.ndarray) -> _Level | None:
        """The next longer step, for elements whose step a program of the scale one would hardly notice."""
        sampler = self._sampler
        reach = np.abs(move) if self._owner is not None else np.max(np.abs(move)) * (move != 0)
        short = sampler.is_short(reach)
        if not short.any():
            return None
        # Far below unit² nothing is found in between: from a step of 1e-300 there would be 58 trials.
        target = np.minimum(np.maximum(LONGER * reach, self._unit**2), sampler._longest)
        with np.errstate(over="ignore"):
            longer = np.where(short, move * (target / np.where(short, reach, 1.0)), move)
        longer, one_sided = self._away_from_zero(longer)
        stencil = sampler.stencil.one_sided if one_sided else sampler.stencil
        room = find_room(sampler.program, stencil, longer)
        ratio = room.steps[move != 0] / move[move != 0]
        if np.max(np.abs(ratio)) <= 1 or (
            self._owner is None and np.ptp(ratio) > 1e-6 * np.max(np.abs(ratio))
        ):
            return None  # no room for a longer step in this direction
        return sampler._level(room.steps, one_sided or bool(room.one_sided.any()))

    def _away_from_zero(self, move: np.ndarray) -> tuple[np.ndarray, bool]:
        """A move that changes no sign, and whether it is in one direction only.

        Many programs take positive numbers only (a concentration, a length), with or without a bound in
        their schema, and raise an error for others.
        """
        origin, nodes = self._sampler.origin, self._sampler.stencil.one_sided.nodes
        crosses = (np.abs(move) * max(nodes) >= np.abs(origin)) & (origin * move != 0)
        if not crosses.any():
            return move, False
        if self._owner is not None:
            return np.where(crosses, np.abs(move) * np.sign(origin), move), True
        return move * np.sign(origin[crosses][0]) * np.sign(move[crosses][0]), True

    def _shorten(self) -> None:
        for start in np.unique(self._chosen):
            level = self._levels[start]
            in_doubt = self._is_long(level) | self._is_guessed(level) | self._is_doubtful(level)
            self._shorten_from(int(start), (self._chosen == start) & in_doubt)

    def _shorten_from(self, start: int, doubtful: np.ndarray) -> None:
        first = level = self._levels[start]
        jumps = doubtful.copy()
        # A derivative of zero: that of x³ at 0 is h² with every step, and no two steps agree.
        vanishes = doubtful.copy()
        number, length = start, 1.0
        # Not below unit^(3/4) of the scale of the inputs, where rounding leaves a quarter of the digits.
        # `length` multiplies the first step, u^(1/(p+1)) of the scale, so the product of the two is u^(3/4).
        shortest = self._unit ** (3 / 4 - 1 / (self._sampler.stencil.order + 1))
        while doubtful.any() and length >= shortest:
            if not self._sampler.can_change():
                return
            length /= SHORTER
            shorter = self._sampler._level(length * first.move, first.one_sided)
            self._levels.append(shorter)
            slope = self._slope(shorter)
            apart, noise = np.abs(self._slope(level) - slope), self._noise(shorter)
            if level is first:
                # The noise of a solver is not a jump: it is small beside the outputs.
                jumps = apart > DOUBT * np.abs(self._slope(level)) + noise
                jumps &= np.abs(first.found[0].change) > np.sqrt(self._unit) * self._base
            # SHORTER is 7.4, so a truncation error of the first order already falls by more than the half
            # that is asked.
            vanishes &= np.abs(slope) <= np.abs(self._slope(level)) / 2
            agreed = doubtful & (apart <= AGREE * np.abs(slope) + noise)
            self._chosen[agreed] = number
            # What is left between them beyond rounding is the truncation error of the longer step. The
            # shorter one has SHORTER⁻ᵖ of it and more rounding; it is taken where that still matters.
            level, number = shorter, len(self._levels) - 1
            self._chosen[agreed & (apart > AGREE / 10 * np.abs(slope) + noise)] = number
            doubtful &= ~agreed
        self._chosen[doubtful & vanishes] = number
        if (doubtful & jumps & ~vanishes).any():
            self._warn(doubtful & jumps & ~vanishes)

    def _is_long(self, level: _Level) -> np.ndarray:
        """Whether the step is too long for a program that varies on the scale of one.

        The quotients of one step can agree by chance: those to the two sides are the same with any length
        where f is odd around x. So a step with which such a program would have an error above `AGREE` is
        compared with a shorter one in any case.
        """
        reach = np.abs(level.move)
        per_output = np.max(reach) if self._owner is None else reach[self._owner]
        return np.asarray(per_output > AGREE ** (1 / self._sampler.stencil.order))

    def _is_guessed(self, level: _Level) -> np.ndarray:
        """The outputs that change much by the step of an input that is zero.

        Zero has no magnitude, so its step is a guess. The quotients of an odd function agree with any step,
        as do those of a sigmoid to one side. But an output that changes by a small part of itself varies
        on a longer scale than the step.
        """
        from_zero = (self._sampler.origin == 0) & (level.move != 0)
        guessed = from_zero[self._owner] if self._owner is not None else from_zero.any()
        return np.asarray(guessed & (np.abs(level.found[0].change) > DOUBT * self._base))

    def _is_doubtful(self, level: _Level) -> np.ndarray:
        """The outputs whose quotients are not finite, or differ by more than their rounding."""
        finite = np.all([np.isfinite(each.change) for each in level.found], axis=0)
        doubtful = np.isfinite(self._base) & ~finite
        if level.bend is not None:
            # The quotients to the two sides differ by bend / h and their mean is change / 2h. Four outputs
            # are added up in the bend, twice as many as in a difference.
            noise = 2 * ROUNDED * self._unit * (self._base + np.abs(level.found[0].change))
            doubtful |= 2 * np.abs(level.bend) - noise > DOUBT * np.abs(level.found[0].change)
        if len(level.found) > 1:
            first, second = (each.change / self._distance(each) for each in level.found[:2])
            doubtful |= np.abs(first - second) - self._noise(level) > DOUBT * np.abs(first)
        return doubtful

    def _slope(self, level: _Level) -> np.ndarray:
        """The derivative along the first move; not a number where a step is lost in rounding."""
        return np.asarray(sum(each.over(self._distance(each)) for each in level.found))

    def _noise(self, level: _Level) -> np.ndarray:
        """The rounding error of the derivative: of the outputs, and of the inputs inside the program.

        A program that rounds x by unit·|x| changes its derivative over a step h by unit·|x|/h of itself.
        """
        origin = np.abs(self._sampler.origin)
        moving = level.move != 0
        ratio = np.divide(origin, np.abs(level.move), out=np.zeros_like(origin), where=moving)
        inputs = ratio[self._owner] if self._owner is not None else np.max(ratio, initial=0.0)
        outputs = sum(
            np.abs(ROUNDED * each.weight / self._distance(each))
            * (self._base + np.abs(each.change))
            for each in level.found
        )
        return np.asarray(self._unit * (outputs + inputs * np.abs(self._slope(level))))

    def _distance(self, each: Difference) -> Any:
        """How far the inputs moved, in units of the first move; one for each output with an owner."""
        move = self._move
        if self._owner is None:
            unit = move / np.max(np.abs(move))  # the square of a tiny move would be zero
            distance = float((each.moved / np.max(np.abs(move))) @ unit) / float(unit @ unit)
            return distance if distance else np.nan
        ratio = np.divide(each.moved, move, out=np.ones_like(move), where=move != 0)
        distances = np.where(self._owner >= 0, ratio[self._owner], 1.0)
        return np.where(distances != 0, distances, np.nan)

    def _warn(self, rows: np.ndarray) -> None:
        path, _ = self._sampler.outputs.locate(int(np.flatnonzero(rows)[0]))
        by, _ = self._sampler.program.layout.locate(int(np.argmax(np.abs(self._move))))
        # Elements are not named: a warning with the same text is shown once, and a solver with adaptive steps
        # has noise in nearly all of them.
        warnings.warn(
            f"The finite differences of {path!r} by {by!r} do not converge as the step is shortened: the "
            "program jumps or has noise, or varies faster than its precision resolves. Give a step that "
            "suits it (eps=...).",
            RuntimeWarning,
            stacklevel=2,
        )

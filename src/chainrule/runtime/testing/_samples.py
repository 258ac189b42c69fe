"""What derivatives are compared with: differences of `apply` at sampled elements, and along one direction.

The Taylor-remainder test asks whether the derivative takes away the linear part. For a smooth f and the
right slope d, φ(h) − φ(0) − h d falls by four when h is halved; with a wrong slope it falls by two. The
order, not the size, is tested, so no tolerance has to be guessed. Where the remainder is below rounding (of
a linear f it is so at once), it is as small as it can be: passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chainrule._errors import InputError
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime._derivatives._layout import Layout, read_arrays
from chainrule.runtime._derivatives._sampler import Sampler, find_room
from chainrule.runtime._derivatives._stencils import STENCILS, Eps, coarsest
from chainrule.runtime._schema import rounding_unit
from chainrule.runtime.testing._report import Check
from chainrule.runtime.testing._subject import Subject


@dataclass(frozen=True)
class Samples:
    """Part of the Jacobian by central differences.

    Attributes:
        rows: layout of all output elements.
        columns: layout of all input elements.
        row_ids: the output elements looked at.
        column_ids: the input elements looked at.
        values: `matrix[row_ids][:, column_ids]`.
        noise: how much of each value may be rounding error, same shape.
    """

    rows: Layout
    columns: Layout
    row_ids: np.ndarray
    column_ids: np.ndarray
    values: np.ndarray
    noise: np.ndarray

    def part(self, *, max_rows: int, max_columns: int) -> Samples:
        """Fewer rows and columns, spread over those that are looked at."""
        rows = _spread(self.row_ids.size, max_rows)
        columns = _spread(self.column_ids.size, max_columns)
        return replace(
            self,
            row_ids=self.row_ids[rows],
            column_ids=self.column_ids[columns],
            values=self.values[np.ix_(rows, columns)],
            noise=self.noise[np.ix_(rows, columns)],
        )


def make_samples(
    subject: Subject,
    generator: np.random.Generator,
    *,
    eps: Eps,
    max_columns: int,
    max_rows: int,
    spare: int,
    show_progress: bool,
) -> Samples:
    """Difference the component at sampled input elements, with two evaluations for each and some to spare.

    Args:
        subject: the component.
        generator: picks the elements where there are too many.
        eps: the step, as in `finite_difference_jacobian`.
        max_columns: bound on the input elements looked at.
        max_rows: bound on the output elements looked at.
        spare: bound on the evaluations for steps of other lengths.
        show_progress: whether long work shows a bar.
    """
    program = subject.program()
    outputs = read_arrays(subject.outputs, subject.output_paths)
    sampler = Sampler(
        program, STENCILS["central"], eps, base=outputs, spare=spare, show_progress=show_progress
    )
    rows, columns = Layout.of(outputs), program.layout
    column_ids = _pick(generator, columns, max_columns)
    row_ids = _pick(generator, rows, max_rows)
    magnitude = np.abs(rows.join(outputs)[row_ids])
    unit = unit_roundoff(*program.precision.values(), *(a.dtype for a in outputs.values()))
    looked_at = np.isin(np.arange(columns.size), column_ids)
    room = find_room(program, sampler.stencil, np.where(looked_at, sampler.steps, 0.0))
    moves = [np.where(np.arange(columns.size) == i, room.steps, 0.0) for i in column_ids]
    one_sided = [bool(room.one_sided[i]) for i in column_ids]
    values = np.zeros((row_ids.size, column_ids.size))
    noise = np.zeros_like(values)
    for k, found in enumerate(sampler.differences(moves, one_sided)):
        for each in found:
            span = each.moved[column_ids[k]]
            values[:, k] += each.over(span, row_ids)
            weight = np.broadcast_to(each.weight, each.change.shape)[row_ids]
            noise[:, k] += np.abs(8 * weight * unit / span) * magnitude
    return Samples(rows, columns, row_ids, column_ids, values, noise)


def unit_roundoff(*dtypes: np.dtype) -> float:
    """The largest relative rounding unit of some dtypes."""
    return rounding_unit(coarsest(*dtypes))


def _spread(size: int, limit: int) -> np.ndarray:
    count = min(size, limit)
    return np.linspace(0, size - 1, count).astype(np.int64) if count > 1 else np.arange(count)


def _pick(generator: np.random.Generator, layout: Layout, limit: int) -> np.ndarray:
    """Some elements, all when they are few; every path gets at least one where the limit allows."""
    if layout.size <= limit:
        return np.arange(layout.size)
    parts = [part for part in layout.slices().values() if part.stop > part.start]
    first = [int(generator.integers(part.start, part.stop)) for part in parts][:limit]
    others = np.setdiff1d(np.arange(layout.size), first)
    more = generator.choice(others, size=limit - len(first), replace=False)
    return np.sort(np.concatenate([first, more]).astype(np.int64))


STEPS = 2.0 ** -np.array([4, 7, 10])
"""Multiples of the direction, falling. The last is small enough to see errors of
a percent, and large enough to forgive a derivative that is itself a careful finite difference."""
SHRINKS = 3
"""How often a direction is shortened, each time by the last of the steps."""
MIN_LEFT = 100
"""Evaluations that stay for the other tests when a direction is shortened."""
MIN_ORDER = 1.5
"""Halfway between the order of a wrong slope (1) and of a right one (2)."""


@dataclass(frozen=True)
class Direction:
    """A random direction v of the inputs, random weights u of the outputs, and φ(h) = ⟨u, f(x + h v)⟩.

    Attributes:
        tangent: v by path, each element as large as its input, or shorter where the component varies faster.
        cotangent: u by path.
        base: φ(0).
        values: φ at `STEPS`; not a number where the component refuses the point.
        unit: the coarsest relative rounding unit of inputs and outputs.
        noise: the rounding error to expect in φ.
    """

    tangent: dict[str, np.ndarray]
    cotangent: dict[str, np.ndarray]
    base: float
    values: np.ndarray
    unit: float
    noise: float

    @classmethod
    def random(
        cls, subject: Subject, generator: np.random.Generator, *, max_evals: int
    ) -> Direction:
        """A direction for one component at one point, that leads away from the bounds of its inputs.

        Args:
            subject: the component.
            generator: draws the direction.
            max_evals: bound on all evaluations; the direction is shortened only where it leaves enough.
        """
        program = subject.program()
        inputs = {p: np.asarray(get_at_path(subject.inputs, p)) for p in subject.input_paths}
        outputs = {p: np.asarray(get_at_path(subject.outputs, p)) for p in subject.output_paths}
        wanted = {}
        for path, x in inputs.items():
            # Each element moves on its own scale; zero has that of its neighbours up to one, or else one.
            scale = np.where(x != 0, np.abs(x), min(np.max(np.abs(x), initial=0.0), 1.0) or 1.0)
            wanted[path] = scale.astype(float) * generator.uniform(0.5, 1.0, x.shape)
        longest = STEPS.max() * program.layout.join(wanted)
        room = find_room(program, STENCILS["forward"], longest)
        moves = program.layout.split(room.steps / STEPS.max())
        tangent = {path: moves[path].astype(x.dtype) for path, x in inputs.items()}
        cotangent = {
            path: generator.normal(size=y.shape).astype(y.dtype) for path, y in outputs.items()
        }
        unit = unit_roundoff(*(a.dtype for a in (*inputs.values(), *outputs.values())))
        size = sum(float(np.sum(np.abs(u * outputs[p]))) for p, u in cotangent.items())
        base, noise = _weigh(cotangent, outputs), 8 * unit * size
        found = cls(tangent, cotangent, base, _values(subject, tangent, cotangent), unit, noise)
        for _ in range(min(SHRINKS, (max_evals - MIN_LEFT) // STEPS.size)):
            if found.is_resolved:
                break
            tangent = {path: (v * STEPS.min()).astype(v.dtype) for path, v in found.tangent.items()}
            values = _values(subject, tangent, cotangent)
            found = replace(found, tangent=tangent, values=values)
        return found

    @property
    def is_resolved(self) -> bool:
        """Whether the quotients (φ(h) - φ(0))/h converge as h falls; no derivative is needed for that.

        For a smooth φ each is closer to the next by the ratio of the steps. Where a component varies within
        the steps (a phase of a million radians), none of them tells anything about a derivative.
        """
        quotients = (self.values - self.base) / STEPS
        near, far = np.abs(np.diff(quotients))[::-1][:2]
        rounding = (
            4 * self.noise / STEPS.min() + 8 * self.unit * np.abs(quotients[-1]) / STEPS.min()
        )
        return not near > 0.5 * far + rounding

    def point(self, subject: Subject, h: float) -> Any:
        """The inputs at x + h v."""
        return _moved(subject, self.tangent, h)

    def weigh(self, outputs: Mapping[str, Any]) -> float:
        """⟨u, outputs⟩."""
        return _weigh(self.cotangent, outputs)

    def along(self, gradient: Mapping[str, Any]) -> float:
        """⟨gradient, v⟩."""
        return sum(float(np.vdot(v, gradient[p])) for p, v in self.tangent.items())


def _weigh(cotangent: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> float:
    return sum(
        float(np.sum(u.astype(np.float64) * np.asarray(outputs[path])))
        for path, u in cotangent.items()
    )


def _values(subject: Subject, tangent: Any, cotangent: Any) -> np.ndarray:
    """φ at `STEPS`."""
    return np.array([_value_at(subject, cotangent, _moved(subject, tangent, h)) for h in STEPS])


def _value_at(subject: Subject, cotangent: Mapping[str, np.ndarray], inputs: Any) -> float:
    try:
        outputs = subject.apply(inputs)
    except InputError:
        # Outside what the schema allows: this step says nothing about the derivative.
        return float("nan")
    return _weigh(cotangent, {path: get_at_path(outputs, path) for path in cotangent})


def _moved(subject: Subject, tangent: Mapping[str, np.ndarray], h: float) -> Any:
    arrays = {path: np.asarray(get_at_path(subject.inputs, path)) for path in tangent}
    moved = {path: (x + h * tangent[path]).astype(x.dtype) for path, x in arrays.items()}
    return set_at_path(subject.inputs, moved)


def check_taylor(endpoint: str, direction: Direction, slope: float) -> Check:
    """Whether the remainder with this slope is of second order."""
    usable = np.isfinite(direction.values)
    steps, values = STEPS[usable], direction.values[usable]
    remainders = np.abs(values - direction.base - steps * slope)
    # Rounding of x + h v moves φ as well, by about the unit times the slope. A remainder that is not
    # a number counts as large.
    above_rounding = ~(remainders <= 4 * (direction.noise + 8 * direction.unit * abs(slope)))
    pairs = tuple(zip(steps.tolist(), remainders.tolist(), strict=True))
    if steps.size < 2:
        summary = "skipped: the component refuses inputs around this point"
        return Check(endpoint, "taylor", True, 0, summary)
    if above_rounding.sum() < 2:
        summary = "the remainder is rounding error"
        passed = not above_rounding[-1]
        return Check(endpoint, "taylor", passed, steps.size, summary, remainders=pairs)
    (h, smaller_h), (large, small) = steps[above_rounding][-2:], remainders[above_rounding][-2:]
    order = float(np.log(large / small) / np.log(h / smaller_h))
    summary = f"the remainder is of order {order:.2f} (2 when the derivative is right)"
    return Check(endpoint, "taylor", order > MIN_ORDER, steps.size, summary, remainders=pairs)

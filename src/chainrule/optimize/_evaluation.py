"""One evaluation per point, for all that a solver asks there.

Solvers ask for the value, the gradient, the constraints and their Jacobian one after the other, and call
again at the same point. `Evaluation.at` computes all of them together, once per point, and keeps the last
answer.
It is also the place where a run is looked at: points are clipped to the bounds (solvers overshoot by
rounding), numbers have to be finite, the history grows, the callback is asked, and the best point so far is
written to the checkpoint.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from chainrule._errors import InputError, StorageError
from chainrule._files import write_whole
from chainrule._jaxpr import enable_x64
from chainrule._progress import progress_bar
from chainrule.bridge import component_errors
from chainrule.optimize._variables import Variables, refuse_tracers
from chainrule.runtime import Bounds, progress

FEASIBLE = 1e-6
"""A constraint that is violated by no more than this holds; see `Limits.violation`."""
_PAUSE_S = 1.0
"""Checkpoints that follow each other faster than this are left out, except the last."""


@dataclass(frozen=True)
class Step:
    """One evaluation of a run.

    Attributes:
        evaluation: its number, from 1.
        value: of the objective; half the sum of squares for residuals.
        gradient: the largest element of the gradient, by magnitude; 0 where none was asked for.
        violation: by how much the worst constraint is violated, relative to a bound that is beyond ±1;
            0 when all hold.
        x: the variables, nested as the start is. A callback gets them; a history does not keep them.
    """

    evaluation: int
    value: float
    gradient: float
    violation: float
    x: Any = field(default=None, repr=False, compare=False)


class Point(NamedTuple):
    """What is known at one point.

    Attributes:
        value: of the objective.
        gradient: of the objective; `None` for solvers that use none.
        constraints: their values as one vector; for least squares the residuals.
        jacobian: of these, dense, sparse or an operator; `None` without gradients.
    """

    value: Any
    gradient: Any
    constraints: Any
    jacobian: Any


class StoppedError(Exception):
    """Ends a solver from inside; the run returns what it has found so far."""


@dataclass(frozen=True)
class Limits:
    """The bounds of constraints as two vectors."""

    lower: np.ndarray
    upper: np.ndarray

    @classmethod
    def of(cls, bounds: Sequence[Bounds], sizes: Sequence[int]) -> Limits:
        """The limits of constraints with this many elements each."""
        lower, upper = (
            np.repeat([getattr(b, side) for b in bounds], sizes).astype(float)
            for side in ("lower", "upper")
        )
        return cls(lower, upper)

    def violation(self, values: np.ndarray) -> float:
        """By how much the worst element is outside: in its own units, or in those of a bound beyond ±1.

        Solvers reach a bound of 10⁹ to some digits, as numbers do, and not to 10⁻⁶.
        """
        worst = 0.0
        for excess, bound in ((self.lower - values, self.lower), (values - self.upper, self.upper)):
            scale = np.where(np.isfinite(bound), np.maximum(1.0, np.abs(bound)), 1.0)
            worst = max(worst, float(np.max(excess / scale, initial=0.0)))
        return worst


class Evaluation:
    """The function of a problem at any number of points.

    Args:
        variables: what varies.
        compute: vector → `Point` in arrays of JAX.
        limits: of the constraints; `None` without any.
        callback: called with every `Step`; ends the run by returning `True`.
        checkpoint: file of the best point so far.
        max_evaluations: ends the run.
        description: what is done, for the progress bar.

    Attributes:
        history: the evaluations so far, those of the checkpoint included.
        best: the best point so far, as a vector; `None` before the first.
    """

    def __init__(
        self,
        variables: Variables,
        compute: Callable[[Any], Point],
        *,
        limits: Limits | None = None,
        callback: Callable[[Step], Any] | None = None,
        checkpoint: Path | None = None,
        max_evaluations: int,
        description: str,
    ) -> None:
        self.variables = variables
        self.limits = limits
        self.start = variables.start
        self.history: list[Step] = []
        self.best: np.ndarray | None = None
        self.max_evaluations = max_evaluations
        self._compute = compute
        self._callback = callback
        self._checkpoint = checkpoint
        self._description = description
        self._rank: tuple[float, float] = (np.inf, np.inf)
        self._last: tuple[bytes, Point] | None = None
        self._written = 0.0
        self._count = 0
        self._advance: Callable[[int], None] = lambda done: None
        if checkpoint is not None:
            _check_place(checkpoint)
            if checkpoint.exists():
                self.start, self.history = read_checkpoint(checkpoint, variables)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show progress, and leave the checkpoint of the best point, however the run ends."""
        with progress_bar(self._description, self.max_evaluations) as advance:
            self._advance = advance
            try:
                yield
            finally:
                if self._checkpoint is not None and self.best is not None:
                    write_checkpoint(self._checkpoint, self.variables, self.best, self.history)

    def at(self, vector: Any) -> Point:
        """Everything at one point.

        Raises:
            StoppedError: the run ends here.
            InputError: the start itself has no finite value (`not_finite`).
        """
        x = self.clipped(vector)
        # By its bytes: solvers hand over the same numbers in arrays of their own, which they change in place.
        key = x.tobytes()
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        self._check_count()
        point = self._numbers(x)
        self._require_finite(point)
        # Before `_note`, whose callback may end the run: the result is then made from this point without
        # another call.
        self._last = (key, point)
        self._note(x, point)
        return point

    def note(self, vector: Any, value: Any) -> None:
        """Follow a point that a solver has evaluated itself.

        Raises:
            StoppedError: the run ends here.
        """
        self._check_count()
        self._note(self.clipped(vector), Point(float(value), None, None, None))

    def _check_count(self) -> None:
        if self._count >= self.max_evaluations:
            raise StoppedError(f"{self.max_evaluations} evaluations were made (max_evaluations)")
        self._count += 1

    def look(self, vector: Any) -> Point:
        """The same after the run: nothing is noted, and nothing ends."""
        x = self.clipped(vector)
        if self._last is not None and self._last[0] == x.tobytes():
            return self._last[1]
        return self._numbers(x)

    def clipped(self, vector: Any) -> np.ndarray:
        """A point within the bounds, as an array of its own."""
        return np.clip(np.array(vector, float), self.variables.lower, self.variables.upper)

    def _numbers(self, x: np.ndarray) -> Point:
        with component_errors(), enable_x64(True):
            point = self._compute(x)
            refuse_tracers(point.value)
            point = jax.block_until_ready(point)
        value = float(point.value)
        parts = (None if part is None else _as_numpy(part) for part in point[1:])
        return Point(value, *parts)

    def _require_finite(self, point: Point) -> None:
        reason = self._not_finite(point)
        if reason is None:
            return
        if self._count == 1:
            raise InputError(
                f"{reason} at the start. Begin where it is defined.", code="not_finite"
            )
        raise StoppedError(f"{reason} at evaluation {self._count}")

    def _not_finite(self, point: Point) -> str | None:
        if not np.isfinite(point.value):
            return f"The objective is {float(point.value)}, which is not a finite number"
        if point.gradient is not None and not np.isfinite(point.gradient).all():
            element = int(np.flatnonzero(~np.isfinite(point.gradient))[0])
            return f"The gradient with respect to {self.variables.name(element)} is not finite"
        if point.constraints is not None and not np.isfinite(point.constraints).all():
            element = int(np.flatnonzero(~np.isfinite(point.constraints))[0])
            return f"Element {element} of the constraints is not finite"
        return None

    def _note(self, x: np.ndarray, point: Point) -> None:
        steepest = (
            0.0 if point.gradient is None else float(np.max(np.abs(point.gradient), initial=0))
        )
        violation = 0.0 if self.limits is None else self.limits.violation(point.constraints)
        step = Step(len(self.history) + 1, point.value, steepest, violation)
        self.history.append(step)
        # Lexicographic: least violation first, then the value.
        # A point that violates constraints is worse than any that does not.
        rank = (violation if violation > FEASIBLE else 0.0, point.value)
        if rank < self._rank:
            self._rank, self.best = rank, x
        progress(self._count / self.max_evaluations, f"{self._description}: {point.value:.6g}")
        self._advance(self._count)
        now = time.monotonic()
        if self._checkpoint is not None and now - self._written > _PAUSE_S:
            write_checkpoint(self._checkpoint, self.variables, self.best, self.history)
            self._written = now
        if self._callback is None:
            return
        if self._callback(replace(step, x=self.variables.tree(x))) is True:
            raise StoppedError("the callback ended the run")


def _as_numpy(part: Any) -> Any:
    """An array of JAX as one of NumPy in double precision; sparse matrices and operators as they are."""
    return np.asarray(part, float) if isinstance(part, (jax.Array, np.ndarray)) else part


def _check_place(path: Path) -> None:
    """Refuse at the beginning of a run what would be noticed at its end.

    Raises:
        StorageError: there can be no checkpoint.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(path.parent, os.W_OK | os.X_OK)
    except OSError as error:
        is_writable, reason = False, error.strerror
    else:
        reason = "no permission"
    if not is_writable:
        raise StorageError(f"The checkpoint {str(path)!r} cannot be written: {reason}.")


def write_checkpoint(
    path: Path, variables: Variables, best: np.ndarray | None, history: Sequence[Step]
) -> None:
    """Write the best point so far and the history, completely or not at all."""
    if best is None:
        return
    names = json.dumps([[leaf.path, list(leaf.shape)] for leaf in variables.leaves])
    buffer = io.BytesIO()
    steps = np.array(
        [(step.evaluation, step.value, step.gradient, step.violation) for step in history], float
    ).reshape(-1, 4)
    np.savez(buffer, allow_pickle=False, best=best, names=np.array(names), history=steps)
    write_whole(path, [buffer.getvalue()], durable=True)


def read_checkpoint(path: Path, variables: Variables) -> tuple[np.ndarray, list[Step]]:
    """The best point and the history of an earlier run of the same problem.

    Raises:
        StorageError: the file is not a checkpoint (`file_damaged`).
        InputError: it is that of other variables (`bad_checkpoint`).
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            best, names, steps = file["best"], json.loads(str(file["names"])), file["history"]
    except Exception as error:
        raise StorageError(
            f"{str(path)!r} is not a checkpoint of a run: {error}", code="file_damaged"
        ) from error
    expected = [[leaf.path, list(leaf.shape)] for leaf in variables.leaves]
    if names != expected:
        raise InputError(
            f"{str(path)!r} is the checkpoint of another problem: its variables are {_shown(names)}, and "
            f"those here are {_shown(expected)}. Remove the file, or name another one.",
            code="bad_checkpoint",
        )
    history = [
        Step(int(k), value, gradient, violation) for k, value, gradient, violation in steps.tolist()
    ]
    return np.clip(best, variables.lower, variables.upper), history


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(f"{path}{shape}" for path, shape in names)

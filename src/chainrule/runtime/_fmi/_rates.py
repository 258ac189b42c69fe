"""The equations of a model-exchange FMU: x' = f(t, x, u, p), y = h(t, x, u, p), and products of Jacobians.

`Rates` brings an instance to a point and evaluates there. A model without events is brought there by setting
time, states and inputs, and is started again only when parameters change. A model with events is started at
every point, so that what it computes does not depend on the point before.

The FMU gives products of its Jacobian where its model description says so. It is never asked otherwise: some
FMUs end the process. By the standard, derivatives are by states and inputs; many FMUs have those by
parameters as well. `differences=True` takes derivatives by parameters by central differences instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from chainrule._errors import ComponentError
from chainrule.runtime._fmi._description import Variable, pieces, split, total
from chainrule.runtime._fmi._instances import Event, Instance

# Of central differences, relative to a parameter: errors of rounding and of truncation are alike.
_STEP = float(np.cbrt(np.finfo(float).eps))
_NUMPY = (np.ndarray, np.generic)


class Point(NamedTuple):
    """Where the equations are evaluated. `states` is a vector, the others are by field."""

    time: float
    states: np.ndarray
    inputs: Mapping[str, Any]
    parameters: Mapping[str, Any]


class Rates:
    """The equations at one instance.

    Args:
        instance: of an FMU for model exchange.
        differences: take derivatives by parameters by differences.

    Attributes:
        has_events: whether the model has events, as far as is known.
    """

    def __init__(self, instance: Instance, *, differences: bool = False) -> None:
        self._instance = instance
        self._fmu = instance.fmu
        self._description = instance.description
        self._differenced = (
            {v.reference for v in self._description.parameters} if differences else set()
        )
        self._point: Point | None = None
        self._key: list[bytes] = []
        self._size = total(self._description.states)
        self._x, self._dx = ((ctypes.c_double * self._size)() for _ in range(2))
        self._x_view, self._dx_view = (np.ctypeslib.as_array(v) for v in (self._x, self._dx))
        self._dx_parts = split(self._description.states, self._dx_view)
        self.has_events = self._description.indicators > 0
        is_2 = self._description.version == 2
        self._set_time = instance.function("SetTime")
        self._set_states, self._get_states, self._get_derivatives = (
            instance.function(name, vector, self._size) if self._size else _nothing
            for name, vector in (
                ("SetContinuousStates", self._x),
                ("GetContinuousStates", self._x),
                ("GetDerivatives" if is_2 else "GetContinuousStateDerivatives", self._dx),
            )
        )

    def start(self, point: Point) -> Event:
        """Begin a simulation at a point."""
        self._point = None
        states = split(self._description.states, point.states)
        event = self._instance.start(point.time, point.parameters, states, point.inputs)
        self._key = _key(point.parameters)
        self._point = point
        return event

    def go_to(self, point: Point) -> None:
        """Bring the instance to a point, from any state."""
        is_elsewhere = self._point is None or _key(point.parameters) != self._key
        if is_elsewhere or self.has_events:
            self.has_events = self.start(point).next is not None or self.has_events
        self.move_to(point)

    def move_to(self, point: Point) -> None:
        """Set time, states and inputs; parameters stay as they are."""
        self._point = None
        self._set_time(point.time)
        self._x_view[:] = point.states
        self._set_states()
        self._instance.inputs.write(point.inputs)
        self._point = point

    def states(self) -> np.ndarray:
        """The states of the instance."""
        self._get_states()
        return self._x_view.copy()

    def derivatives(self) -> np.ndarray:
        """x' at the point where the instance is."""
        self._get_derivatives()
        return self._dx_view.copy()

    def derivatives_by_field(self) -> dict[str, np.ndarray]:
        """The same by the fields of the states."""
        self._get_derivatives()
        return {field: part.copy() for field, part in self._dx_parts.items()}

    def failure(self, reason: str, code: str) -> ComponentError:
        """The error that the FMU causes without a failing call."""
        return self._instance.failure(reason, code)

    def outputs(self) -> dict[str, Any]:
        """y at the point where the instance is, by field."""
        return self._instance.outputs.read()

    def indicators(self) -> np.ndarray:
        """The event indicators at the point where the instance is."""
        values = (ctypes.c_double * self._description.indicators)()
        self._fmu.getEventIndicators(values, len(values))
        return np.array(values)

    def completed_step(self) -> tuple[bool, bool]:
        """Tell the FMU that a step is made: whether it asks for an event, and whether it ends."""
        facts = self._description.facts("model_exchange")
        is_needed = (
            not facts.completedIntegratorStepNotNeeded
            if self._description.version == 2
            else facts.needsCompletedIntegratorStep
        )
        return self._fmu.completedIntegratorStep() if is_needed else (False, False)

    def event(self, point: Point) -> Event:
        """Let the FMU handle an event at the point where it is, with the inputs after it."""
        self._fmu.enterEventMode()
        self._instance.inputs.write(point.inputs)
        return self._instance.settle()

    def forward(
        self, of: Sequence[Variable], by: Sequence[Variable], seed: np.ndarray
    ) -> np.ndarray:
        """The Jacobian of some unknowns by some knowns at the point, times a vector."""
        seeds = list(zip(by, pieces(by, seed), strict=True))
        asked = [(v, part) for v, part in seeds if v.reference not in self._differenced]
        moved = [(v, part) for v, part in seeds if v.reference in self._differenced]
        found = np.zeros(total(of))
        if asked:
            vector = np.concatenate([part for _, part in asked])
            found += self._ask("Directional", of, [v for v, _ in asked], vector, total(of))
        if moved:
            found += self._difference(of, moved)
        return found

    def backward(
        self, of: Sequence[Variable], by: Sequence[Variable], seed: np.ndarray
    ) -> np.ndarray:
        """The transposed Jacobian times a vector."""
        if self._description.adjoint and self._differenced.isdisjoint(v.reference for v in by):
            return self._ask("Adjoint", of, by, seed, total(by))
        return seed @ self.jacobian(of, by)

    def jacobian(self, of: Sequence[Variable], by: Sequence[Variable]) -> np.ndarray:
        """The Jacobian, column by column."""
        columns = [self.forward(of, by, column) for column in np.eye(total(by))]
        return np.stack(columns, axis=1) if columns else np.zeros((total(of), 0))

    def _ask(
        self,
        kind: str,
        of: Sequence[Variable],
        by: Sequence[Variable],
        seed: np.ndarray,
        size: int,
    ) -> np.ndarray:
        unknowns, knowns = [v.reference for v in of], [v.reference for v in by]
        if self._description.version == 2:
            return np.array(self._fmu.getDirectionalDerivative(unknowns, knowns, seed))
        return np.array(getattr(self._fmu, f"get{kind}Derivative")(unknowns, knowns, seed, size))

    def _difference(
        self, of: Sequence[Variable], along: Sequence[tuple[Variable, np.ndarray]]
    ) -> np.ndarray:
        """The derivative along a direction of parameters, by central differences."""
        here = self._point
        assert here is not None
        length = max(float(np.max(np.abs(part))) for _, part in along)
        if length == 0:
            return np.zeros(total(of))
        # As large a change as fits the parameters that move.
        sizes = [np.abs(np.ravel(here.parameters[v.field])[part != 0]) for v, part in along]
        step = _STEP * (float(np.concatenate(sizes).max()) or 1.0) / length
        ends = []
        for sign in (1, -1):
            moved = {
                v.field: here.parameters[v.field] + sign * step * part.reshape(v.shape)
                for v, part in along
            }
            self.go_to(here._replace(parameters={**here.parameters, **moved}))
            ends.append(self._values(of))
        # A parameter is changed by starting the instance again. It is brought back: the next product of the
        # same call is asked for at this point.
        self.go_to(here)
        return (ends[0] - ends[1]) / (2 * step)

    def _values(self, of: Sequence[Variable]) -> np.ndarray:
        """Unknowns at the point where the instance is."""
        rates = self.derivatives_by_field()
        found = {v.reference: rates[v.field] for v in self._description.rates}
        outputs = self.outputs()
        found |= {v.reference: outputs[v.field] for v in self._description.outputs}
        return np.concatenate([np.ravel(found[v.reference]) for v in of]).astype(float)


def _nothing() -> None:
    """What there is to do for a model without states."""


def _key(values: Mapping[str, Any]) -> list[bytes]:
    """Equal for equal values."""
    return [
        value.tobytes() if isinstance(value, _NUMPY) else np.asarray(value).tobytes()
        for value in values.values()
    ]

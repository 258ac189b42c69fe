"""Whole simulations as a component: parameters, start values and a table of inputs → outputs at given times.

A model-exchange FMU is integrated here by an explicit Runge–Kutta method. Output times, rows of the input
table and events end a step, so that every step sees smooth inputs. With a tableau (a, b, c) a step is

    kᵢ = f(t + cᵢh, x + h Σⱼ aᵢⱼ kⱼ, u(t + cᵢh), p),        x⁺ = x + h Σᵢ bᵢ kᵢ.

Products with the derivative of a simulation are those of the steps that were made, in order or in reverse
(the discrete adjoint): with Jᵢ the Jacobian of f by x at stage i, and λ⁺ the cotangent of x⁺,

    wᵢ = h (bᵢ λ⁺ + Σⱼ aⱼᵢ Jⱼᵀ wⱼ),  i falling,        λ = λ⁺ + Σᵢ Jᵢᵀ wᵢ,

and Jacobians by u and p, transposed, times wᵢ are added up. Lengths of steps count as constants. An event
that changes states has a derivative of its own, which FMI does not tell: such a simulation has none here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, create_model

from chainrule._errors import CapabilityError, ComponentError, InputError
from chainrule._progress import progress
from chainrule.runtime._fmi._description import (
    Description,
    Variable,
    joined,
    pieces,
    split,
    total,
)
from chainrule.runtime._fmi._instances import Instance, Instances
from chainrule.runtime._fmi._rates import Point, Rates
from chainrule.runtime._fmi._steps import model, reported
from chainrule.runtime._fmi._tables import Table
from chainrule.runtime._schema import array_type
from chainrule.runtime._schema._spec import make_spec

Method = Literal["rk4", "dopri5"]


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge–Kutta method; `error` are the weights of its error estimate, empty without one."""

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...] = ()


TABLEAUS: dict[str, Tableau] = {
    "rk4": Tableau(
        ((), (1 / 2,), (0, 1 / 2), (0, 0, 1)), (1 / 6, 1 / 3, 1 / 3, 1 / 6), (0, 1 / 2, 1 / 2, 1)
    ),
    # Dormand and Prince (1980).
    "dopri5": Tableau(
        (
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
            (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
        ),
        (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0),
        (0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1),
        (71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How a simulation is made.

    Attributes:
        method: of integration.
        step_size: the longest step; without one, that of the FMU's default experiment.
        tolerance: relative, of an adaptive method.
        differences: take derivatives by parameters by differences.
    """

    method: Method
    step_size: float | None
    tolerance: float
    differences: bool


class Simulation:
    """Simulations of an FMU as the endpoints of a component: schemas, and what both interfaces share."""

    def __init__(self, description: Description, settings: Settings) -> None:
        self.description = d = description
        self.settings = settings
        columns: dict[str, Any] = {
            v.field: (
                v.annotation("rows", bounded=True) | None,
                Field(None, description=v.description),
            )
            for v in d.inputs
        }
        table = create_model("Inputs", time=(_series("rows"), Field(description="s")), **columns)
        begin, end = d.experiment["startTime"] or 0.0, d.experiment["stopTime"]
        times: Any = ... if end is None else np.linspace(begin, end, 101)
        of_times = "when outputs are reported; the simulation starts at the first"
        of_inputs = "linear between rows, a time twice is a jump, the ends hold"
        self.input_schema = create_model(
            "InputSchema",
            times=(_series("times"), Field(times, description=of_times)),
            parameters=model("Parameters", d.parameters),
            start=model("Start", d.settable_states),
            inputs=(table | None, Field(None, description=of_inputs)),
        )

    def read(self, inputs: Any) -> tuple[np.ndarray, Table]:
        """Output times and the table of inputs, checked."""
        times = np.asarray(inputs.times)
        if times.size == 0 or not np.isfinite(times).all() or not np.all(np.diff(times) > 0):
            raise InputError("Expected times to be one or more numbers that rise.", path="times")
        table = None if inputs.inputs is None else vars(inputs.inputs)
        return times, Table(self.description.inputs, table)


def _series(size: str) -> Any:
    """The type of a number for each time or row."""
    return array_type(make_spec((size,), "float64"))


def _stops(times: np.ndarray, table: Table) -> np.ndarray:
    """The times after the start at which a step has to end."""
    found = np.union1d(times, table.knots())
    return found[(found > times[0]) & (found <= times[-1])]


def _stacked(records: list[dict[str, Any]], variables: tuple[Variable, ...]) -> dict[str, Any]:
    columns = {v: [record[v.field] for record in records] for v in variables}
    return {v.field: c if v.is_text else np.stack(c) for v, c in columns.items()}


class CoSimulation(Simulation):
    """Simulations by the FMU's own solver."""

    def __init__(self, description: Description, settings: Settings) -> None:
        super().__init__(description, settings)
        self._instances: Instances[Instance] = Instances(description, "co_simulation", lambda i: i)
        self.output_schema = create_model(
            "OutputSchema", outputs=reported("Outputs", description.outputs, "times")
        )

    def endpoints(self) -> dict[str, Any]:
        """FMI has no derivatives of a co-simulation."""
        return {"apply": self.apply}

    def apply(self, inputs: Any) -> dict[str, Any]:
        """Simulate."""
        records = self._instances.call(self._simulated, inputs, *self.read(inputs))
        return {"outputs": _stacked(records, self.description.outputs)}

    def _simulated(
        self, instance: Instance, inputs: Any, times: np.ndarray, table: Table
    ) -> list[dict[str, Any]]:
        """The outputs at each output time."""
        wanted, time = set(times.tolist()), float(times[0])
        values = table.at(time, table.interval(time))
        instance.start(time, vars(inputs.parameters), vars(inputs.start), values)
        records = [instance.outputs.read()]
        for stop in _stops(times, table).tolist():
            for begin, length in self._steps(time, stop, float(times[0])):
                instance.inputs.write(table.at(begin, table.interval(begin)))
                instance.do_step(begin, length)
                progress((begin - times[0]) / (times[-1] - times[0]), "simulating")
            time = stop
            instance.inputs.write(table.at(time, table.interval(time)))
            if time in wanted:
                records.append(instance.outputs.read())
        return records

    def _steps(self, begin: float, end: float, origin: float) -> Iterator[tuple[float, float]]:
        """Time and length of each step to the next stop."""
        longest = self.settings.step_size or self.description.experiment["stepSize"] or end - begin
        if self.description.facts("co_simulation").canHandleVariableCommunicationStepSize:
            count = max(1, int(np.ceil((end - begin) / longest - 1e-9)))
            length = (end - begin) / count
            yield from ((begin + k * length, length) for k in range(count))
            return
        first, last = ((t - origin) / longest for t in (begin, end))
        if abs(last - round(last)) > 1e-6:
            raise InputError(
                f"{self.description.path.name} makes steps of {longest:g} only "
                "(canHandleVariableCommunicationStepSize): output times and times of the input table have to "
                "be a multiple of that after the first output time.",
                path="times",
            )
        yield from ((origin + k * longest, longest) for k in range(round(first), round(last)))


@dataclass(frozen=True, eq=False)
class _Step:
    """A step that was made: x at time, and its length."""

    time: float
    length: float
    states: np.ndarray
    interval: int


@dataclass(frozen=True, eq=False)
class _Record:
    """Outputs that were reported, as number `index`."""

    index: int
    time: float
    states: np.ndarray
    interval: int


class ExchangeSimulation(Simulation):
    """Simulations with our integrator."""

    def __init__(self, description: Description, settings: Settings) -> None:
        super().__init__(description, settings)
        self._instances = Instances(
            description, "model_exchange", lambda i: Rates(i, differences=settings.differences)
        )
        self.output_schema = create_model(
            "OutputSchema",
            outputs=reported("Outputs", description.outputs, "times"),
            states=reported("States", description.states, "times"),
        )

    def endpoints(self) -> dict[str, Any]:
        """With derivatives, if the FMU has those of its equations and has no events."""
        found: dict[str, Any] = {"apply": self.apply}
        if self.description.directional and not self.description.indicators:
            found["jacobian_vector_product"] = self.jacobian_vector_product
            found["vector_jacobian_product"] = self.vector_jacobian_product
        return found

    def apply(self, inputs: Any) -> dict[str, Any]:
        """Simulate."""
        run = self._instances.call(self._simulated, inputs, *self.read(inputs))
        states = split(self.description.states, np.stack([r.states for r in run.records]))
        return {"outputs": _stacked(run.outputs, self.description.outputs), "states": states}

    def jacobian_vector_product(
        self, inputs: Any, jvp_inputs: Any, jvp_outputs: Any, tangent_vector: Any
    ) -> dict[str, Any]:
        """Tangents of the steps that a simulation makes."""

        def compute(rates: Rates, *schedule: Any) -> dict[str, Any]:
            run = self._simulated(rates, inputs, *schedule)
            return _Derivative(run, jvp_inputs).forward(tangent_vector)

        found = self._instances.call(compute, *self.read(inputs))
        return {path: found[path] for path in jvp_outputs}

    def vector_jacobian_product(
        self, inputs: Any, vjp_inputs: Any, vjp_outputs: Any, cotangent_vector: Any
    ) -> dict[str, Any]:
        """Cotangents of the steps that a simulation makes, in reverse."""

        def compute(rates: Rates, *schedule: Any) -> dict[str, Any]:
            run = self._simulated(rates, inputs, *schedule)
            return _Derivative(run, vjp_inputs).backward(cotangent_vector)

        return self._instances.call(compute, *self.read(inputs))

    def _simulated(self, rates: Rates, inputs: Any, times: np.ndarray, table: Table) -> _Run:
        run = _Run(self, rates, inputs, times, table)
        run.simulate()
        return run


class _Run:
    """One simulation.

    Attributes:
        tape: the steps and records that were made, in order.
        outputs: what was reported at each output time.
        is_smooth: whether no event has changed states.
    """

    def __init__(
        self, simulation: ExchangeSimulation, rates: Rates, inputs: Any, times: np.ndarray, table: Table
    ) -> None:  # fmt: skip
        self.description = simulation.description
        self.rates = rates
        self.table = table
        self.times = times
        self.parameters = vars(inputs.parameters)
        self.tableau = TABLEAUS[simulation.settings.method]
        self.tape: list[_Step | _Record] = []
        self.outputs: list[dict[str, Any]] = []
        self.is_smooth = True
        self._start = vars(inputs.start)
        self._tolerance = simulation.settings.tolerance
        span = float(times[-1] - times[0])
        by_default = self.description.experiment["stepSize"] or span / 1000
        is_adaptive = bool(self.tableau.error)
        self._longest = simulation.settings.step_size or (np.inf if is_adaptive else by_default)
        # A first guess only: the error of the first steps makes it longer or shorter.
        self._length = min(self._longest, span / 100)
        nominal = [np.full(v.size, v.nominal) for v in self.description.states]
        self._nominal = np.concatenate(nominal) if nominal else np.zeros(0)
        self._next_event: float | None = None

    @property
    def records(self) -> list[_Record]:
        """What was reported."""
        return [entry for entry in self.tape if isinstance(entry, _Record)]

    def point(self, time: float, states: np.ndarray, interval: int) -> Point:
        """A point on the trajectory or at a stage of a step."""
        return Point(time, states, self.table.at(time, interval), self.parameters)

    def simulate(self) -> None:
        """From the first output time to the last."""
        time, wanted = float(self.times[0]), set(self.times.tolist())
        states = self._begin(time)
        self._record(time, states)
        for stop in _stops(self.times, self.table).tolist():
            while time < stop:
                time, states = self._advance(time, states, stop)
                progress((time - self.times[0]) / (self.times[-1] - self.times[0]), "simulating")
            if self.table.is_jump(stop):
                states = self._event(time, states)
            if stop in wanted:
                self._record(time, states)

    def _begin(self, time: float) -> np.ndarray:
        given = np.concatenate([
            np.ravel(self._start.get(v.field, np.full(v.shape, np.nan))) for v in self.description.states
        ] or [np.zeros(0)])  # fmt: skip
        event = self.rates.start(self.point(time, given, self.table.interval(time)))
        self._next_event = event.next
        found = self.rates.states()
        # States that the FMU computes at the start depend on parameters in a way that FMI does not tell.
        self.is_smooth = np.array_equal(found, given)
        return found

    def _record(self, time: float, states: np.ndarray) -> None:
        record = _Record(len(self.outputs), time, states, self.table.interval(time))
        self.rates.move_to(self.point(time, states, record.interval))
        self.outputs.append(self.rates.outputs())
        self.tape.append(record)

    def _advance(self, time: float, states: np.ndarray, stop: float) -> tuple[float, np.ndarray]:
        """One step towards a time, and the event that ends it, if there is one."""
        target = stop if self._next_event is None else min(stop, max(self._next_event, time))
        # The middle, because both ends may be rows of the table, and a row belongs to two intervals.
        interval = self.table.interval((time + target) / 2)
        if target > time:
            before = self._signs(time, states, interval)
            length, after = self._step(time, states, target - time, interval)
            crossed = self._crossing(time, states, length, interval, before)
            if crossed is not None:
                length, after = crossed
            self.tape.append(_Step(time, length, states, interval))
            # time + (target - time) may differ from `target` by rounding, and then the loop to `target` would
            # make one more step of the length of that rounding.
            is_last = length == target - time
            time, states = (target if is_last else time + length), after
            self.rates.move_to(self.point(time, states, interval))
            asks, ends = self.rates.completed_step()
            if ends:
                raise self.rates.failure(f"ends the simulation at {time:g}", "fmu_stopped")
            if crossed is not None or asks:
                states = self._event(time, states)
        if self._next_event is not None and time >= self._next_event:
            states = self._event(time, states)
        return time, states

    def _event(self, time: float, states: np.ndarray) -> np.ndarray:
        event = self.rates.event(self.point(time, states, self.table.interval(time)))
        self._next_event = event.next if event.next is not None and event.next > time else None
        if not event.moved:
            return states
        self.is_smooth = False
        return self.rates.states()

    def stages(
        self, time: float, states: np.ndarray, length: float, interval: int
    ) -> Iterator[tuple[Point, np.ndarray]]:
        """Points and rates of the stages of a step; the instance is at the point that was yielded last."""
        rates: list[np.ndarray] = []
        for row, c in zip(self.tableau.a, self.tableau.c, strict=True):
            moved = states + length * sum(
                (a * k for a, k in zip(row, rates, strict=True)), np.zeros_like(states)
            )
            point = self.point(time + c * length, moved, interval)
            self.rates.move_to(point)
            rates.append(self.rates.derivatives())
            yield point, rates[-1]

    def _try(
        self, time: float, states: np.ndarray, length: float, interval: int
    ) -> tuple[np.ndarray, float]:
        """The states after a step, and its error in units of what is tolerated."""
        rates = np.stack([k for _, k in self.stages(time, states, length, interval)])
        after = states + length * (np.array(self.tableau.b) @ rates)
        if not self.tableau.error or not states.size:
            return after, 0.0
        scale = self._tolerance * np.maximum(self._nominal, np.maximum(abs(states), abs(after)))
        return after, float(
            np.sqrt(np.mean((length * (np.array(self.tableau.error) @ rates) / scale) ** 2))
        )

    def _step(
        self, time: float, states: np.ndarray, most: float, interval: int
    ) -> tuple[float, np.ndarray]:
        """A step of a length that the error allows: the length, and the states after it."""
        if not self.tableau.error:
            # Equal steps up to the next stop, none longer than allowed. 1e-9 is for rounding: 10.000000001
            # steps are ten.
            length = most / max(1, int(np.ceil(most / self._longest - 1e-9)))
            return length, self._try(time, states, length, interval)[0]
        while True:
            length = min(self._length, self._longest, most)
            after, error = self._try(time, states, length, interval)
            # The estimate is of the fourth order, so its error grows like h⁵: the length for an error of one
            # is error^(-1/5) times this one. 0.9 leaves a margin, since a step that is refused has cost all
            # its stages.
            factor = 5.0 if error == 0 else float(np.clip(0.9 * error**-0.2, 0.2, 5.0))
            if error <= 1:
                # A step that a stop has cut says that a shorter step is good, which is no reason to make the
                # next ones longer from there: the length before is kept.
                if length == self._length or factor < 1:
                    self._length = length * factor
                return length, after
            self._length = length * (factor if np.isfinite(error) else 0.2)
            if self._length < 1e-13 * max(abs(time), most):
                raise ComponentError(
                    f"{self.description.path.name}: no step is short enough at {time:g}. The model may be "
                    "stiff, or have a singularity there. Try interface="
                    '"co_simulation", or a larger tolerance.',
                    code="fmu_failed",
                )

    def _signs(self, time: float, states: np.ndarray, interval: int) -> np.ndarray:
        """Which event indicators are positive."""
        if not self.description.indicators:
            return np.zeros(0)
        self.rates.move_to(self.point(time, states, interval))
        return self.rates.indicators() > 0

    def _crossing(
        self, time: float, states: np.ndarray, length: float, interval: int, before: np.ndarray
    ) -> tuple[float, np.ndarray] | None:
        """The shortest step, to rounding, after which an event indicator has changed its sign."""
        if not before.size:
            return None

        def changes(part: float) -> tuple[bool, np.ndarray]:
            after, _ = self._try(time, states, part, interval)
            return not np.array_equal(self._signs(time + part, after, interval), before), after

        changed, after = changes(length)
        if not changed:
            return None
        low, high = 0.0, length
        # The step is made again from its start with every length, and not interpolated: the states at the
        # event are those of the method. `high` is always a length after which a sign has changed, so the
        # event is behind it.
        while high - low > 1e-12 * max(abs(time), length):
            middle = (low + high) / 2
            changed, found = changes(middle)
            low, high, after = (low, middle, found) if changed else (middle, high, after)
        return high, after


class _Derivative:
    """Products with the derivative of a simulation that was made.

    Args:
        run: the simulation.
        paths: of the inputs that vary.

    Raises:
        CapabilityError: an event, or the start, has changed states (`not_differentiable`).
    """

    def __init__(self, run: _Run, paths: Any) -> None:
        if not run.is_smooth:
            raise CapabilityError(
                f"{run.description.path.name} changes its states at the start or at an event, and FMI does "
                'not say how that depends on inputs. Pass derivatives="finite" to from_fmu.',
                code="not_differentiable",
            )
        self._run = run
        self._rates = run.rates
        self._columns = [v for v in run.table.moving if f"inputs.{v.field}" in paths]
        self._parameters = [
            v for v in run.description.parameters if f"parameters.{v.field}" in paths
        ]
        self._starts = [v for v in run.description.settable_states if f"start.{v.field}" in paths]
        self._states = list(run.description.states)
        self._knowns = [*self._states, *self._columns, *self._parameters]
        self._shown = [v for v in run.description.outputs if v.continuous]

    def forward(self, tangents: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The tangents of all outputs, by path."""
        run = self._run
        columns = {v.field: np.asarray(tangents[f"inputs.{v.field}"]) for v in self._columns}
        fixed = [np.ravel(tangents[f"parameters.{v.field}"]) for v in self._parameters]
        starts = {v.field: tangents[f"start.{v.field}"] for v in self._starts}
        dx = joined(self._states, {v.field: np.zeros(v.shape) for v in self._states} | starts)

        def product(
            of: list[Variable], moved: np.ndarray, time: float, interval: int
        ) -> np.ndarray:
            inputs = [np.ravel(u) for u in run.table.tangent(columns, time, interval)]
            return self._rates.forward(of, self._knowns, np.concatenate([moved, *inputs, *fixed]))

        outputs, states = [], []
        for entry in run.tape:
            if isinstance(entry, _Record):
                run.rates.move_to(run.point(entry.time, entry.states, entry.interval))
                outputs.append(product(self._shown, dx, entry.time, entry.interval))
                states.append(dx)
                continue
            changes: list[np.ndarray] = []
            stages = run.stages(entry.time, entry.states, entry.length, entry.interval)
            # `stages` moves the instance when it is asked for the next stage, so the product below is taken
            # at this one. The tangent of a stage is ẋ + h Σ aᵢⱼ k̇ⱼ with the k̇ of the earlier stages, as
            # `_combined` has it.
            for row, (point, _) in zip(run.tableau.a, stages, strict=True):
                moved = dx + entry.length * _combined(row, changes, dx)
                changes.append(product([*run.description.rates], moved, point.time, entry.interval))
            dx = dx + entry.length * _combined(run.tableau.b, changes, dx)
        found = {f"outputs.{k}": v for k, v in split(self._shown, np.stack(outputs)).items()}
        return found | {f"states.{k}": v for k, v in split(self._states, np.stack(states)).items()}

    def backward(self, cotangents: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The cotangents of the inputs that vary, by path."""
        run, sizes = self._run, [total(self._states), total(self._columns)]
        columns = {v.field: np.zeros((run.table.time.size, *v.shape)) for v in self._columns}
        fixed = np.zeros(total(self._parameters))
        adjoint = np.zeros(total(self._states))
        of_outputs = _rows(cotangents, "outputs", self._shown, len(run.outputs))
        of_states = _rows(cotangents, "states", self._states, len(run.outputs))

        def product(of: list[Variable], seed: np.ndarray, time: float, interval: int) -> np.ndarray:
            """The cotangent of the states; the others are added where they belong."""
            found = self._rates.backward(of, self._knowns, seed)
            by_states, by_inputs, by_parameters = np.split(found, np.cumsum(sizes))
            run.table.add_cotangent(columns, pieces(self._columns, by_inputs), time, interval)
            fixed[:] += by_parameters
            return by_states

        for entry in reversed(run.tape):
            if isinstance(entry, _Record):
                adjoint = adjoint + of_states[entry.index]
                if np.any(of_outputs[entry.index]):
                    run.rates.move_to(run.point(entry.time, entry.states, entry.interval))
                    adjoint = adjoint + product(
                        self._shown, of_outputs[entry.index], entry.time, entry.interval
                    )
                continue
            h, tableau = entry.length, run.tableau
            # Stages are computed again instead of kept: the tape has one vector of states per step, not one
            # per stage.
            points = [p for p, _ in run.stages(entry.time, entry.states, h, entry.interval)]
            pulled = [np.zeros_like(adjoint) for _ in points]
            for i in reversed(range(len(points))):
                # Column i of a: aⱼᵢ is the weight of kᵢ in the later stages j, whose wⱼ are known by now, as
                # i falls.
                later = [row[i] if i < len(row) else 0.0 for row in tableau.a]
                seed = h * (tableau.b[i] * adjoint + _combined(later, pulled, adjoint))
                if np.any(seed):
                    run.rates.move_to(points[i])
                    pulled[i] = product(
                        [*run.description.rates], seed, points[i].time, entry.interval
                    )
            adjoint = adjoint + sum(pulled, np.zeros_like(adjoint))
        found = {f"inputs.{name}": column for name, column in columns.items()}
        found |= {f"parameters.{k}": v for k, v in split(self._parameters, fixed).items()}
        by_start = split(self._states, adjoint)
        return found | {f"start.{v.field}": by_start[v.field] for v in self._starts}


def _combined(weights: Any, vectors: list[np.ndarray], like: np.ndarray) -> np.ndarray:
    terms = (w * v for w, v in zip(weights, vectors, strict=False) if w)
    return sum(terms, np.zeros_like(like))


def _rows(
    cotangents: Mapping[str, Any], group: str, variables: list[Variable], count: int
) -> np.ndarray:
    """Cotangents of a group of outputs, one vector for each output time; zero where none is given."""
    parts = [
        np.reshape(
            cotangents.get(f"{group}.{v.field}", np.zeros((count, *v.shape))), (count, v.size)
        )
        for v in variables
    ]
    return np.concatenate(parts, axis=1) if parts else np.zeros((count, 0))

"""One evaluation of the equations of an FMU, or one co-simulation step, as a component.

A model-exchange step is `time, states, inputs, parameters` → `derivatives, outputs`: the right-hand side that
an integrator needs. A co-simulation step has the state of the FMU as bytes among its inputs and outputs, so
that it does not depend on what was called before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import Field, create_model

from chainrule._errors import DefinitionError
from chainrule.runtime._fmi._description import (
    Description,
    Variable,
    joined,
    pieces,
)
from chainrule.runtime._fmi._instances import Instance, Instances
from chainrule.runtime._fmi._rates import Point, Rates
from chainrule.runtime._schema import Float64, array_type
from chainrule.runtime._schema._spec import make_spec


def model(name: str, variables: Iterable[Variable], *, bounded: bool = True) -> tuple[Any, Any]:
    """A field with one field for each variable; it can be left out where all of them can."""
    variables = list(variables)
    fields: dict[str, Any] = {v.field: v.given(bounded=bounded) for v in variables}
    made = create_model(name, **fields)
    if any(v.start is None for v in variables):
        return made, ...
    return made, Field(default_factory=made)


def reported(name: str, variables: Iterable[Variable], *leading: str) -> tuple[Any, Any]:
    """A field with one field for each variable that an FMU computes."""
    fields: dict[str, Any] = {
        v.field: (v.annotation(*leading), Field(description=v.description)) for v in variables
    }
    return create_model(name, **fields), ...


class ExchangeStep:
    """The equations of an FMU as the endpoints of a component."""

    def __init__(self, description: Description, *, differences: bool) -> None:
        self._description = d = description
        self._instances = Instances(
            d, "model_exchange", lambda i: Rates(i, differences=differences)
        )
        self.input_schema = create_model(
            "InputSchema",
            time=(Float64, Field(np.float64(d.experiment["startTime"] or 0.0), description="s")),
            # Stages of an integrator may leave the bounds of a state.
            states=model("States", d.states, bounded=False),
            inputs=model("Inputs", d.inputs),
            parameters=model("Parameters", d.parameters),
        )
        self.output_schema = create_model(
            "OutputSchema",
            derivatives=reported("Derivatives", d.rates),
            outputs=reported("Outputs", d.outputs),
        )
        self._knowns = _by_path(states=d.states, inputs=d.inputs, parameters=d.parameters)
        self._unknowns = _by_path(derivatives=d.rates, outputs=d.outputs)

    def endpoints(self) -> dict[str, Any]:
        """The endpoints that the FMU has by itself."""
        found: dict[str, Any] = {"apply": self.apply}
        if self._description.directional:
            found["jacobian_vector_product"] = self.jacobian_vector_product
        if self._description.adjoint:
            found["vector_jacobian_product"] = self.vector_jacobian_product
        elif self._description.directional:
            found["jacobian"] = self.jacobian
        return found

    def apply(self, inputs: Any) -> dict[str, Any]:
        """x' and y."""
        return self._instances.call(_evaluated, self._point(inputs))

    def jacobian_vector_product(
        self, inputs: Any, jvp_inputs: Any, jvp_outputs: Any, tangent_vector: Any
    ) -> dict[str, Any]:
        """By the FMU's directional derivatives."""
        by, of = _chosen(self._knowns, jvp_inputs), _chosen(self._unknowns, jvp_outputs)
        return _shaped(of, self._product(Rates.forward, inputs, of, by, _flat(by, tangent_vector)))

    def vector_jacobian_product(
        self, inputs: Any, vjp_inputs: Any, vjp_outputs: Any, cotangent_vector: Any
    ) -> dict[str, Any]:
        """By the FMU's adjoint derivatives."""
        by, of = _chosen(self._knowns, vjp_inputs), _chosen(self._unknowns, vjp_outputs)
        return _shaped(
            by, self._product(Rates.backward, inputs, of, by, _flat(of, cotangent_vector))
        )

    def jacobian(self, inputs: Any, jac_inputs: Any, jac_outputs: Any) -> dict[str, Any]:
        """By one directional derivative for each element of the inputs."""
        by, of = _chosen(self._knowns, jac_inputs), _chosen(self._unknowns, jac_outputs)
        found = self._product(Rates.jacobian, inputs, of, by)
        rows = np.split(found, np.cumsum([v.size for v in of.values()])[:-1])
        return {
            o: {
                i: part.reshape((*of[o].shape, *by[i].shape))
                for i, part in zip(by, pieces([*by.values()], row), strict=True)
            }
            for o, row in zip(of, rows, strict=True)
        }

    def _product(
        self,
        product: Callable[..., np.ndarray],
        inputs: Any,
        of: Mapping[str, Variable],
        by: Mapping[str, Variable],
        *vector: np.ndarray,
    ) -> np.ndarray:
        """The Jacobian of some unknowns by some knowns at a point, or its product with a vector."""

        def compute(rates: Rates, point: Point) -> np.ndarray:
            rates.go_to(point)
            return product(rates, [*of.values()], [*by.values()], *vector)

        return self._instances.call(compute, self._point(inputs))

    def _point(self, inputs: Any) -> Point:
        states = joined(self._description.states, vars(inputs.states))
        return Point(float(inputs.time), states, vars(inputs.inputs), vars(inputs.parameters))


def _evaluated(rates: Rates, point: Point) -> dict[str, Any]:
    rates.go_to(point)
    return {"derivatives": rates.derivatives_by_field(), "outputs": rates.outputs()}


def _by_path(**groups: Iterable[Variable]) -> dict[str, Variable]:
    return {f"{group}.{v.field}": v for group, variables in groups.items() for v in variables}


def _chosen(variables: Mapping[str, Variable], paths: Any) -> dict[str, Variable]:
    return {path: v for path, v in variables.items() if path in paths}


def _flat(variables: Mapping[str, Variable], values: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(values[path]) for path in variables]).astype(float)


def _shaped(variables: Mapping[str, Variable], vector: np.ndarray) -> dict[str, np.ndarray]:
    parts = pieces([*variables.values()], vector)
    return {p: x.reshape(v.shape) for (p, v), x in zip(variables.items(), parts, strict=True)}


class CoSimulationStep:
    """One step of a co-simulation FMU as a component."""

    def __init__(self, description: Description) -> None:
        self._description = d = description
        if not d.facts("co_simulation").canSerializeFMUstate:
            raise DefinitionError(
                f"{d.path.name} cannot save its state as bytes (canSerializeFMUState), so a step of it "
                'depends on the steps before. Use kind="simulation".',
                code="bad_fmu",
            )
        self._instances: Instances[Instance] = Instances(d, "co_simulation", lambda i: i)
        length, begin = d.experiment["stepSize"], np.float64(d.experiment["startTime"] or 0.0)
        step: Any = ... if length is None else np.float64(length)
        saved: Any = array_type(make_spec((None,), "uint8"))
        self.input_schema = create_model(
            "InputSchema",
            time=(Float64, Field(begin, description="at the start of the step")),
            step=(Float64, Field(step, gt=0, description="its length")),
            inputs=model("Inputs", d.inputs),
            parameters=model("Parameters", d.parameters),
            state=(saved | None, Field(None, description="of the FMU; it starts anew without")),
        )
        self.output_schema = create_model(
            "OutputSchema",
            time=(Float64, Field(description="at the end of the step")),
            outputs=reported("Outputs", d.outputs),
            state=(saved, Field(description="of the FMU")),
        )

    def endpoints(self) -> dict[str, Any]:
        """There are no derivatives of a step."""
        return {"apply": self.apply}

    def apply(self, inputs: Any) -> dict[str, Any]:
        """Make a step."""
        return self._instances.call(self._step, inputs)

    def _step(self, instance: Instance, inputs: Any) -> dict[str, Any]:
        time, given = float(inputs.time), vars(inputs.inputs)
        if inputs.state is None:
            starts = {v.field: v.start for v in self._description.settable_states}
            instance.start(time, vars(inputs.parameters), starts, given)
        else:
            instance.restore(inputs.state)
            instance.inputs.write(given)
        instance.do_step(time, float(inputs.step))
        return {
            "time": time + float(inputs.step),
            "outputs": instance.outputs.read(),
            "state": instance.saved(),
        }

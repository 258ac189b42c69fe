"""`from_fmu`: a component of an FMU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from chainrule._errors import DefinitionError
from chainrule.runtime._component._definition import Definition, Implementation
from chainrule.runtime._component._derivation import Derivatives, finite_implementations
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._fmi._description import Description, Interface, read_description
from chainrule.runtime._fmi._simulations import (
    TABLEAUS,
    CoSimulation,
    ExchangeSimulation,
    Method,
    Settings,
)
from chainrule.runtime._fmi._steps import CoSimulationStep, ExchangeStep

Kind = Literal["simulation", "step"]
_TOLERANCE = 1e-6


def from_fmu(
    path: str | Path,
    *,
    kind: Kind = "simulation",
    interface: Interface | None = None,
    derivatives: Derivatives | Literal["fmu"] = "fmu",
    parameter_derivatives: Literal["fmu", "differences"] = "fmu",
    method: Method = "dopri5",
    step_size: float | None = None,
    tolerance: float | None = None,
    parameters: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    debug_logging: bool = False,
    name: str | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
) -> LocalComponent:
    """Make a component of an FMU (FMI 2 or 3).

    The code of an FMU runs in this process; where it may crash, serve the FMU or open the component in a
    process of its own.

    Args:
        path: of the file.
        kind: `"simulation"` from start values, parameters and a table of inputs to outputs at given times, or
            `"step"`: one evaluation of x' and y for an integrator of yours, or one co-simulation step.
        interface: `"model_exchange"` or `"co_simulation"`; the first that the FMU has, by default.
        derivatives: `"fmu"` for those that the FMU has by its model description, or an option of
            `@component` for finite differences.
        parameter_derivatives: whether the FMU is asked for derivatives by parameters, which the standard does
            not require, or differences are taken of its equations.
        method: of the integration of a model-exchange FMU: `"dopri5"` with adaptive steps, or `"rk4"` with
            equal ones.
        step_size: the longest step, of the integration or between two exchanges with a co-simulation.
        tolerance: relative, of adaptive steps; that of the FMU's default experiment, or 10⁻⁶, by default.
        parameters: names of those that are inputs of the component; all by default.
        outputs: names of the variables that are reported; the outputs of the FMU by default.
        debug_logging: ask the FMU to log all that it does. Some FMUs say only then why a call failed. What it
            says goes to the log `chainrule.runtime`, and its last words into errors.
        name: of the component; that of the model by default.
        config: settings of the component.

    Raises:
        DefinitionError: the file is no FMU that runs here (`bad_fmu`), or an option does not fit it.
    """
    description = read_description(
        Path(path), parameters=parameters, outputs=outputs, debug_logging=debug_logging
    )
    interface = _interface(description, interface)
    for option, value, known in (
        ("kind", kind, get_args(Kind)),
        ("method", method, tuple(TABLEAUS)),
        ("parameter_derivatives", parameter_derivatives, ("fmu", "differences")),
    ):
        if value not in known:
            raise DefinitionError(
                f"{option} is one of {', '.join(known)}; found {value!r}.", code="bad_option"
            )
    for option, number in (("step_size", step_size), ("tolerance", tolerance)):
        if number is not None and not (0 < number < float("inf")):
            raise DefinitionError(f"{option} is positive; found {number!r}.", code="bad_option")
    differences = parameter_derivatives == "differences"
    tolerance = tolerance or description.experiment["tolerance"] or _TOLERANCE
    settings = Settings(method, step_size, tolerance, differences)
    program: Any
    if kind == "step":
        is_exchange = interface == "model_exchange"
        program = (
            ExchangeStep(description, differences=differences)
            if is_exchange
            else CoSimulationStep(description)
        )
    elif interface == "model_exchange":
        program = ExchangeSimulation(description, settings)
    else:
        program = CoSimulation(description, settings)
    return LocalComponent(_definition(description, program, derivatives, name), config)


def _interface(description: Description, wanted: Interface | None) -> Interface:
    offered = [each for each in get_args(Interface) if description.facts(each) is not None]
    if wanted is None and offered:
        return offered[0]
    if wanted is None or wanted not in offered:
        raise DefinitionError(
            f"{description.path} has no interface {wanted or 'for model exchange or co-simulation'}; it has "
            f"{', '.join(offered) or 'none that is supported'}.",
            code="bad_fmu",
        )
    return wanted


def _definition(
    description: Description, program: Any, derivatives: Any, name: str | None
) -> Definition:
    own = program.endpoints()
    if derivatives != "fmu":
        own = {"apply": own["apply"]}
    implementations = {endpoint: Implementation(function) for endpoint, function in own.items()}
    schemas = program.input_schema, program.output_schema
    if derivatives is not None and derivatives != "fmu":
        implementations |= finite_implementations(own["apply"], derivatives, *schemas)
    source = description.source
    return Definition(
        name=name or description.path.stem,
        version=source.version or "unknown",
        description=source.description or f"The FMU {source.modelName}.",
        input_schema=program.input_schema,
        output_schema=program.output_schema,
        implementations=implementations,
        function=program.apply,
        content_hash=description.content_hash(),
        framework="fmi",
    )

"""Hydrogen and methane ignite in air, by Cantera with GRI-Mech 3.0."""

from typing import Annotated

import cantera as ct
import numpy as np
from pydantic import BaseModel, Field
from scipy.interpolate import BarycentricInterpolator

from chainrule import component
from chainrule.runtime import Array, Differentiable, Float64

PRESSURE = 20 * ct.one_atm
STAY = 2e-3  # seconds in the hot chamber after ignition
LONGEST = 1.0
TIMES = np.logspace(-6, -1, 200)


class Outputs(BaseModel):
    """What the charge does."""

    delay: Differentiable[Float64] = Field(
        description="Ignition delay, log10 of seconds"
    )
    nitric_oxide: Differentiable[Float64] = Field(
        description="NO, log10 of the mole fraction"
    )
    heat: Differentiable[Float64] = Field(
        description="Rise of the temperature, in kelvin"
    )
    course: Array[(200,), Float64] = Field(
        description="The temperature at the times of `TIMES`"
    )


@component(framework="numpy", derivatives="finite")
def reactor(
    hydrogen: Annotated[
        Differentiable[Float64],
        Field(ge=0, le=1, description="Part of the fuel"),
    ],
    richness: Annotated[
        Differentiable[Float64],
        Field(ge=0.3, le=1.2, description="Fuel, relative to the air"),
    ],
    temperature: Annotated[
        Differentiable[Float64],
        Field(ge=1000, le=1500, description="Before ignition, in kelvin"),
    ],
) -> Outputs:
    """Ignition, heat and nitric oxide of one charge."""
    gas = ct.Solution("gri30.yaml")
    gas.set_equivalence_ratio(
        richness, {"H2": hydrogen, "CH4": 1 - hydrogen}, "O2:1, N2:3.76"
    )
    gas.TP = temperature, PRESSURE
    chamber = ct.IdealGasReactor(gas, clone=False)
    network = ct.ReactorNet([chamber])
    network.rtol, network.atol = 1e-9, 1e-16  # differences need digits

    course = [(0.0, temperature)]
    while len(course) < 2 or course[-2][1] < temperature + 400:
        if network.time > LONGEST:
            raise ValueError(
                f"the charge does not ignite within {LONGEST} s"
            )
        network.step()
        course.append((network.time, chamber.T))
    # Two steps on each side: a line through one of each would jump when
    # an input moves the steps, and differences of it would be noise.
    times, temperatures = np.transpose(course[-4:])
    inverse = BarycentricInterpolator(temperatures, times)
    delay = float(inverse(temperature + 400))
    for part in np.linspace(0, 1, 20) ** 3:
        network.advance(max(delay + STAY * part, network.time))
        course.append((network.time, chamber.T))
    return Outputs(
        delay=np.log10(delay),
        nitric_oxide=np.log10(gas["NO"].X[0]),
        heat=chamber.T - temperature,
        course=np.interp(TIMES, *np.transpose(course)),
    )

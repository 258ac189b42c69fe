"""A cantilever beam on a page: every kind of field that a form has to offer."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, Field

from chainrule.runtime import Array, Differentiable, Float64, Int32
from chainrule.runtime.derivatives import finite_difference_jacobian

framework = "numpy"


class Steel(BaseModel):
    kind: Literal["steel"] = "steel"
    grade: Literal["S235", "S355"] = Field("S355", description="Structural grade")


class Custom(BaseModel):
    kind: Literal["custom"] = "custom"
    modulus: float = Field(7.0e10, gt=0, description="Young's modulus in Pa")


class Section(BaseModel):
    """A rectangle."""

    width: Differentiable[Array[(), Float64, "m"]] = Field(0.05, description="Width of the section")
    height: Differentiable[Array[(), Float64, "m"]] = Field(
        0.1, description="Height of the section"
    )


class InputSchema(BaseModel):
    loads: Differentiable[Array[("cell",), Float64, "N/m"]] = Field(
        [1000.0, 1200.0, 1500.0, 900.0], description="Line load on every part of the beam"
    )
    length: Differentiable[Array[(), Float64, "m"]] = Field(2.0, description="Free length")
    section: Section = Field(Section(), description="Cross section")
    material: Annotated[Steel | Custom, Field(discriminator="kind")] = Field(
        Steel(), description="What it is made of"
    )
    stations: Int32 = Field(101, description="Points along the beam", ge=2, le=2001)
    rotation: Array[(2, 2), Float64] = Field([[1.0, 0.0], [0.0, 1.0]], description="Frame")
    damping: float | None = Field(None, description="Optional loss factor")
    tags: list[str] = Field([], description="Free labels")
    gains: dict[str, float] = Field({}, description="Named factors on the load")
    clamped: bool = Field(True, description="Whether the root is clamped")
    seconds: float = Field(0.0, ge=0, description="How long to pretend to work")


class OutputSchema(BaseModel):
    tip: Differentiable[Array[(), Float64, "m"]] = Field(description="Deflection of the tip")
    deflection: Differentiable[Array[("station",), Float64, "m"]] = Field(
        description="Along the beam"
    )
    stress: Differentiable[Array[(24, "station"), Float64, "Pa"]] = Field(
        description="Bending stress over height and length"
    )
    modes: Array[(3, 16, 16), Float64] = Field(description="Three made-up fields")
    note: str


def _solve(inputs: InputSchema):
    n = int(inputs.stations)
    x = np.linspace(0.0, 1.0, n) * inputs.length
    modulus = 2.1e11 if inputs.material.kind == "steel" else inputs.material.modulus
    inertia = inputs.section.width * inputs.section.height**3 / 12
    load = float(np.mean(inputs.loads)) * float(np.prod([*inputs.gains.values(), 1.0]))
    deflection = load * x**2 * (6 * inputs.length**2 - 4 * inputs.length * x + x**2)
    deflection /= 24 * modulus * inertia
    moment = load * (inputs.length - x) ** 2 / 2
    z = np.linspace(-0.5, 0.5, 24) * inputs.section.height
    return deflection, z[:, None] * moment / inertia


def apply(inputs: InputSchema) -> OutputSchema:
    from chainrule.runtime import progress

    for step in range(10 if inputs.seconds else 0):
        progress(step / 10, f"step {step + 1} of 10")
        print(f"working on step {step + 1}", flush=True)  # noqa: T201
        time.sleep(inputs.seconds / 10)
    deflection, stress = _solve(inputs)
    grid = np.linspace(0, np.pi, 16)
    modes = np.stack([np.outer(np.sin(k * grid), np.sin(k * grid)) for k in (1, 2, 3)])
    return OutputSchema(
        tip=deflection[-1], deflection=deflection, stress=stress, modes=modes,
        note=f"{inputs.material.kind}, {len(inputs.tags)} tags",
    )  # fmt: skip


def jacobian(inputs, jac_inputs, jac_outputs):
    return finite_difference_jacobian(apply, inputs, jac_inputs, jac_outputs)

"""A heated plate on a mesh.

The plate is **square**, with a source that moves:

- `centre` is where the source is,
- `power` is how strong it is.

See [the heat equation](https://en.wikipedia.org/wiki/Heat_equation). <script>alert(1)</script>
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, Field
from tesseract_core.runtime.config import get_config

from chainrule.runtime import Array, Complex128, Differentiable, Float64, Int32, UInt8
from chainrule.runtime.derivatives import finite_difference_jacobian
from chainrule.runtime.experimental import InputPath, OutputPath

cheap = True


class Sensor(BaseModel):
    name: str
    reading: float
    ok: bool


class InputSchema(BaseModel):
    centre: Differentiable[Array[(2,), Float64, "m"]] = Field([0.4, 0.6], ge=0, le=1)
    power: Differentiable[Float64] = Field(2.0, ge=0.1, le=10, description="Strength in `W`")
    sensors: Differentiable[Array[("k", 2), Float64, "m"]] = Field(
        [[0.2, 0.2], [0.5, 0.5], [0.8, 0.3]], description="Where the temperature is measured"
    )
    width: Differentiable[Float64] = Field(0.2, gt=0, le=1)
    cells: int = Field(24, ge=4, le=400)
    table: InputPath | None = None


class Mesh(BaseModel):
    points: Array[(None, 2), Float64]
    triangles: Array[(None, 3), Int32]


class OutputSchema(BaseModel):
    misfit: Differentiable[Float64] = Field(description="Mean of the squared readings minus 1")
    readings: Differentiable[Array[("k",), Float64]]
    mesh: Mesh
    temperature: Array[("n",), Float64]
    flux: Array[("n", 2), Float64]
    region: Array[("m",), Float64]
    photograph: Array[(None, None, 3), UInt8]
    wave: Array[(None, None), Complex128]
    powers: Array[(None,), Float64]
    table: list[Sensor]
    extra: dict[str, float]
    names: list[str]
    numbers: list[float]
    story: str
    report: OutputPath


def _heat(inputs: InputSchema, at: np.ndarray) -> np.ndarray:
    return inputs.power * np.exp(-np.sum((at - inputs.centre) ** 2, -1) / (2 * inputs.width**2))


def _mesh(n: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1))
    corner = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).ravel()
    lower = np.stack([corner, corner + 1, corner + n + 2], 1)
    upper = np.stack([corner, corner + n + 2, corner + n + 1], 1)
    return np.stack([x.ravel(), y.ravel()], 1), np.concatenate([lower, upper]).astype(np.int32)


def apply(inputs: InputSchema) -> OutputSchema:
    points, triangles = _mesh(inputs.cells)
    readings = _heat(inputs, inputs.sensors)
    temperature = _heat(inputs, points)
    grid = np.linspace(-2, 2, 32)
    wave = np.exp(3j * np.hypot(grid[:, None], grid)) * np.exp(-np.hypot(grid[:, None], grid))
    report = get_config().output_path / "report.txt"
    report.write_text(f"mean reading {readings.mean():.4f}\n")
    return OutputSchema(
        misfit=np.mean((readings - 1) ** 2),
        readings=readings,
        mesh=Mesh(points=points, triangles=triangles),
        temperature=temperature,
        flux=-(points - inputs.centre) * temperature[:, None],
        region=points[triangles].mean(1)[:, 0],
        photograph=np.stack(
            np.broadcast_arrays(*np.ix_(*2 * [np.arange(0, 256, 8)]), 90), 2
        ).astype(np.uint8),
        wave=wave,
        powers=10.0 ** np.linspace(-6, 3, 50),
        table=[Sensor(name=f"sensor {i}", reading=r, ok=r > 0.5) for i, r in enumerate(readings)],
        extra={},
        names=["steel", "<b>copper</b>"],
        numbers=[1.0, 2.5, 4.0],
        story="First line.\n  A second one, <b>with</b> markup that stays text.",
        report=report,
    )


def jacobian(inputs, jac_inputs, jac_outputs):
    return finite_difference_jacobian(apply, inputs, jac_inputs, jac_outputs)


# What a script in a plot can reach; in the colours of the browser's theme, as its author asks.
SPY = """<meta name="color-scheme" content="light dark"><p id="said">a plot</p><script>
const found = [];
try { found.push(parent.document.title); } catch { found.push("no page"); }
try { found.push(sessionStorage.length); } catch { found.push("no storage"); }
fetch("/status").then(() => found.push("network"), () => found.push("no network"))
  .then(() => { document.getElementById("said").textContent = found.join(", "); });
</script>"""


def plot(inputs, outputs):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3))
    axes = figure.add_subplot()
    axes.tricontourf(*outputs.mesh.points.T, outputs.mesh.triangles, outputs.temperature)
    axes.plot(*inputs.sensors.T, "w^")
    return {"temperature and sensors": figure} | ({"spy": SPY} if inputs.cells == 5 else {})

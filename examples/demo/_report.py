"""The pictures and the page that the demo leaves behind."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Circle, Rectangle
from matplotlib.patheffects import withStroke

from examples.demo.heat.component import CHIP_SIZE, CHIPS, POWERS


@dataclass(frozen=True)
class Result:
    """Everything the report shows."""

    before: dict[str, Any]
    after: dict[str, Any]
    gradient: dict[str, Any]
    costs: list[float]
    check: tuple[float, float]
    seconds: float
    compiler: str
    code: str
    run: str
    pipeline: str

    def headlines(self) -> dict[str, str]:
        """What a person wants to know."""
        hottest = (np.max(side["chips"]) for side in (self.before, self.after))
        failures = (np.sum(side["rates"]) for side in (self.before, self.after))
        copper = (float(side["copper"]) for side in (self.before, self.after))
        return {
            "hottest chip": "{:.0f} K → {:.0f} K".format(*hottest),
            "failures per million hours": "{:.0f} → {:.0f}".format(*failures),
            "copper, W/(m·K) on average": "{:.2f} → {:.2f}".format(*copper),
        }


def write(result: Result, folder: Path, *, commands: str) -> tuple[Path, Path]:
    """The plot and the page; their paths. `commands` is the folder of the commands that the page names."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = _draw(result)
    plot = folder / "demo.png"
    figure.savefig(plot, dpi=120)
    with plt.rc_context(_DARK):
        dark = _draw(result)
    page = folder / "report.html"
    page.write_text(_page(result, _svg(figure), _svg(dark), commands), encoding="utf-8")
    plt.close("all")
    return plot, page


_DARK = {
    "figure.facecolor": "#171a22", "axes.facecolor": "#171a22", "savefig.facecolor": "#171a22",
    "text.color": "#e7eaf2", "axes.labelcolor": "#e7eaf2", "axes.edgecolor": "#9aa3b7",
    "xtick.color": "#9aa3b7", "ytick.color": "#9aa3b7", "grid.color": "#9aa3b7",
}  # fmt: skip


def _draw(result: Result) -> Any:
    sides = {"start": result.before, "optimised": result.after}
    most = {
        name: max(float(np.max(side[name])) for side in sides.values())
        for name in ("conductivity", "temperature")
    }
    figure: Any = plt.figure(figsize=(13.5, 8), layout="constrained")
    axes = figure.subplot_mosaic([["a", "b", "costs"], ["c", "d", "costs"]])
    figure.get_layout_engine().set(wspace=0.05)
    for (title, side), (copper, heat) in zip(sides.items(), ("ab", "cd"), strict=True):
        _draw_field(
            axes[copper], side["conductivity"], f"{title}: copper patches",
            cmap="copper", limits=(0, most["conductivity"]), label="conductivity, W/(m·K)",
        )  # fmt: skip
        _draw_patches(axes[copper], side["design"])
        hottest = np.max(side["temperature"])
        _draw_field(
            axes[heat], side["temperature"], f"{title}: temperature, at most {hottest:.0f} K",
            cmap="inferno", limits=(300, most["temperature"]), label="temperature, K",
        )  # fmt: skip
        _write_temperatures(axes[heat], side["chips"])
    _draw_pushes(axes["a"], result.before["design"]["centres"], result.gradient["centres"])
    _draw_costs(axes["costs"], result.costs)
    return figure


def _draw_field(
    axis: Any, values: Any, title: str, *, cmap: str, limits: tuple[float, float], label: str
) -> None:
    image = axis.imshow(
        np.asarray(values).T, origin="lower", extent=(0, 1, 0, 1), cmap=cmap,
        vmin=limits[0], vmax=limits[1], interpolation="bilinear",
    )  # fmt: skip
    for x, y in CHIPS:
        corner = (x - CHIP_SIZE, y - CHIP_SIZE)
        axis.add_patch(
            Rectangle(
                corner, 2 * CHIP_SIZE, 2 * CHIP_SIZE, fill=False, color="white", alpha=0.45, lw=0.8
            )
        )
    axis.set_title(title, fontsize=11)
    axis.set(xticks=[], yticks=[])
    axis.figure.colorbar(image, ax=axis, shrink=0.85, label=label)


def _draw_patches(axis: Any, design: dict[str, Any]) -> None:
    for (x, y), width in zip(design["centres"], design["widths"], strict=True):
        axis.add_patch(
            Circle((float(x), float(y)), float(width), fill=False, color="white", ls="--")
        )
    axis.set(xlim=(0, 1), ylim=(0, 1))


def _write_temperatures(axis: Any, temperatures: Any) -> None:
    for (x, y), power, kelvin in zip(CHIPS, POWERS, np.asarray(temperatures), strict=True):
        axis.annotate(
            f"{power:.0f} W\n{kelvin:.0f} K", (x, y), ha="center", va="center", fontsize=8,
            color="white", weight="bold", path_effects=[withStroke(linewidth=2, foreground="#3b0f2b")],
        )  # fmt: skip


def _draw_pushes(axis: Any, centres: Any, gradient: Any) -> None:
    """Where the first gradient pushes the patches: downhill, the longest arrow an eighth of the board."""
    x, y = np.asarray(centres).T
    down = -np.asarray(gradient)
    u, v = (down * 0.125 / np.max(np.linalg.norm(down, axis=1))).T
    axis.quiver(x, y, u, v, color="#c7d2fe", angles="xy", scale_units="xy", scale=1, width=0.01)


def _draw_costs(axis: Any, costs: list[float]) -> None:
    axis.plot(costs, lw=2, color="#6366f1")
    axis.set_title("cost: log of the failure rate + penalties", fontsize=11)
    axis.set_xlabel("gradient step")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _page(result: Result, light: str, dark: str, commands: str) -> str:
    facts = {
        "cost": f"{result.costs[0]:.4g} → {result.costs[-1]:.4g}",
        "gradient steps": f"{len(result.costs) - 1} in {result.seconds:.1f} s",
        "directional derivative": (
            f"{result.check[0]:.10g} by the chain rule, {result.check[1]:.10g} by differences"
        ),
        "the compiled program": result.compiler,
    }
    tiles = "".join(
        f"<div><b>{html.escape(change)}</b><span>{html.escape(name)}</span></div>"
        for name, change in result.headlines().items()
    )
    table = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        tiles=tiles, table=table, light=light, dark=dark, code=html.escape(result.code), run=result.run,
        pipeline=result.pipeline, commands=html.escape(commands),
    )  # fmt: skip

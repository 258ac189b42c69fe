"""The pictures and the page that the demo leaves behind."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


@dataclass(frozen=True)
class Result:
    """Everything the report shows."""

    before: dict[str, Any]
    after: dict[str, Any]
    costs: list[float]
    flow: dict[str, tuple[float, float]]
    check: tuple[float, float]
    seconds: float
    compiler: str


def write(result: Result, folder: Path) -> tuple[Path, Path]:
    """The plot and the page; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = _draw(result)
    plot = folder / "demo.png"
    figure.savefig(plot, dpi=120)
    page = folder / "report.html"
    page.write_text(_page(result, _svg(figure)), encoding="utf-8")
    plt.close(figure)
    return plot, page


def _draw(result: Result) -> Any:
    figure, axes = plt.subplots(2, 3, figsize=(13, 8), constrained_layout=True)
    hottest = max(np.max(side["temperature"]) for side in (result.before, result.after))
    for row, (title, side) in enumerate((("start", result.before), ("optimised", result.after))):
        image = axes[row, 0].imshow(
            np.asarray(side["conductivity"]).T, origin="lower", extent=(0, 1, 0, 1), cmap="copper"
        )
        axes[row, 0].set_title(f"{title}: conductivity, W/(m·K)")
        figure.colorbar(image, ax=axes[row, 0], shrink=0.8)
        image = axes[row, 1].imshow(
            np.asarray(side["temperature"]).T, origin="lower", extent=(0, 1, 0, 1), cmap="inferno",
            vmin=300, vmax=hottest,
        )  # fmt: skip
        axes[row, 1].set_title(f"{title}: temperature, K (max {np.max(side['temperature']):.0f})")
        figure.colorbar(image, ax=axes[row, 1], shrink=0.8)
        _draw_patches(axes[row, 0], side["design"])
    axes[0, 2].plot(result.costs)
    axes[0, 2].set(title="cost", xlabel="gradient step")
    _draw_flow(axes[1, 2], result.flow)
    return figure


def _draw_patches(axis: Any, design: dict[str, Any]) -> None:
    for (x, y), width in zip(design["centres"], design["widths"], strict=True):
        axis.add_patch(
            plt.Circle((float(x), float(y)), float(width), fill=False, color="white", alpha=0.6)
        )
    axis.set(xlim=(0, 1), ylim=(0, 1))


def _draw_flow(axis: Any, flow: dict[str, tuple[float, float]]) -> None:
    names = list(flow)
    positions = np.arange(len(names))
    axis.bar(positions - 0.2, [flow[name][0] for name in names], 0.4, label="‖value‖")
    axis.bar(positions + 0.2, [flow[name][1] for name in names], 0.4, label="‖cotangent‖")
    axis.set_yscale("log")
    axis.set_xticks(positions, names, rotation=20)
    axis.set_title("what flows along the pipeline, and back")
    axis.legend()


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _page(result: Result, svg: str) -> str:
    rows = {
        "cost": f"{result.costs[0]:.4g} → {result.costs[-1]:.4g}",
        "hottest chip": (
            f"{np.max(result.before['chips']):.1f} K → {np.max(result.after['chips']):.1f} K"
        ),
        "failures per million hours": (
            f"{np.sum(result.before['rates']):.1f} → {np.sum(result.after['rates']):.1f}"
        ),
        "gradient steps": f"{len(result.costs) - 1} in {result.seconds:.1f} s",
        "directional derivative": (
            f"{result.check[0]:.10g} by the chain rule, {result.check[1]:.10g} by differences"
        ),
        "the C program": result.compiler,
    }
    table = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
    )
    return _TEMPLATE.format(table=table, svg=svg)


_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Chainrule demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
th {{ text-align: left; padding-right: 2rem; font-weight: 600 }} svg {{ width: 100%; height: auto }}
code {{ background: #8882; padding: 0 .3em }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }} svg {{ background: #fff }} }}
</style></head><body>
<h1>One gradient over four programs</h1>
<p>Copper patches were moved, resized and dosed so that a board of nine chips lives longest. The layout is
NumPy with derivatives by hand, the heat solver is SciPy with an adjoint in its own process, the
reliability model is a C program behind finite differences, and the cost is JAX.
<code>jax.value_and_grad</code> saw one function.</p>
<table>{table}</table>
{svg}
</body></html>
"""

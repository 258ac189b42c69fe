"""Norms of values and cotangents along a pipeline: where do gradients vanish or explode?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from chainrule.harvest import Stats
from chainrule.view._drawing import Drawing
from chainrule.view._flow_drawing import draw_flow
from chainrule.view._picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class FlowRow:
    """One named value of a pipeline.

    Attributes:
        name: the name it was sown under.
        size: number of its entries.
        value_norm: Euclidean norm of the value; `None` when it was not captured.
        cotangent_norm: Euclidean norm of its cotangent, likewise.
        nonfinite: how many entries of both are NaN or infinite.
    """

    name: str
    size: int
    value_norm: float | None
    cotangent_norm: float | None
    nonfinite: int


@dataclass(frozen=True)
class GradientFlow(Picture):
    """The rows of a pipeline in its order. A notebook shows it, rich prints it, `plot()` draws curves."""

    rows: tuple[FlowRow, ...]

    def drawing(self) -> Drawing:
        """One line per value, with both norms on a logarithmic scale."""
        lines = [(row.name, row.value_norm, row.cotangent_norm, row.nonfinite) for row in self.rows]
        return draw_flow(lines)

    def __rich__(self) -> Table:
        table = Table("value", "entries", "norm", "cotangent norm", "", "NaN/inf")
        largest = max((row.cotangent_norm or 0.0 for row in self.rows), default=0.0)
        for row in self.rows:
            table.add_row(
                row.name, str(row.size), _number(row.value_norm), _number(row.cotangent_norm),
                _bar(row.cotangent_norm, largest), str(row.nonfinite or ""),
                style="red" if row.nonfinite else None,
            )  # fmt: skip
        return table

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw both norms on a logarithmic axis; needs `chainrule[view]`.

        Args:
            ax: the axes to draw on; new ones when `None`.

        Returns:
            The axes.
        """
        if ax is None:
            from matplotlib.figure import Figure

            figure = Figure(figsize=(max(4.0, 0.8 * len(self.rows)), 3.5), layout="constrained")
            ax = figure.subplots()
        positions = range(len(self.rows))
        for label, norms in (
            ("value", [row.value_norm for row in self.rows]),
            ("cotangent", [row.cotangent_norm for row in self.rows]),
        ):
            if any(norm is not None for norm in norms):
                drawn = [math.nan if norm is None else norm for norm in norms]
                ax.plot(positions, drawn, marker="o", label=label)
        ax.set_yscale("log")
        ax.set_xticks(list(positions), [row.name for row in self.rows], rotation=45, ha="right")
        ax.set_ylabel("norm")
        ax.legend()
        return ax


def gradient_flow(intermediates: Mapping[str, Mapping[str, Any]]) -> GradientFlow:
    """Norms of the values and cotangents of a pipeline, as a table and as a plot.

    Args:
        intermediates: what `save_intermediates(jax.grad(f))` or `intermediate_stats(jax.grad(f))` found.

    Returns:
        The norms in the order of the pipeline. A notebook shows them, `rich.print` prints a table,
        `.plot()` draws on axes of matplotlib, `.save("flow.svg")` keeps them.

    Example:
        >>> import jax
        >>> from chainrule.harvest import save_intermediates, sow
        >>> from chainrule.view import gradient_flow
        >>> _, found = save_intermediates(jax.grad(lambda x: sow(3 * x, "h") ** 2))(1.0)
        >>> [(row.name, row.value_norm, row.cotangent_norm) for row in gradient_flow(found).rows]
        [('h', 3.0, 6.0)]
    """
    return GradientFlow(tuple(_row(name, entry) for name, entry in intermediates.items()))


@dataclass(frozen=True)
class _Measure:
    size: int
    squares: float
    nonfinite: int


def _row(name: str, entry: Mapping[str, Any]) -> FlowRow:
    values, cotangents = (list(_measures(entry.get(mode))) for mode in ("primal", "cotangent"))
    return FlowRow(
        name,
        sum(measure.size for measure in values or cotangents),
        _norm(values),
        _norm(cotangents),
        sum(measure.nonfinite for measure in (*values, *cotangents)),
    )


def _measures(tree: Any) -> Iterator[_Measure]:
    for leaf in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Stats)):
        if isinstance(leaf, Stats):
            yield _Measure(math.prod(leaf.shape), float(leaf.norm) ** 2, int(leaf.nonfinite))
        elif hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.number):
            array = np.asarray(leaf, dtype=np.result_type(leaf.dtype, np.float64))
            squares = float(np.sum(np.abs(array) ** 2))
            yield _Measure(array.size, squares, int(np.sum(~np.isfinite(array))))


def _norm(measures: list[_Measure]) -> float | None:
    return math.sqrt(sum(measure.squares for measure in measures)) if measures else None


def _number(norm: float | None) -> str:
    return "" if norm is None else f"{norm:.3g}"


def _bar(norm: float | None, largest: float, width: int = 20) -> str:
    """A bar over six decades, so that a vanishing gradient is still seen to vanish."""
    if not norm or not largest or not math.isfinite(norm) or not math.isfinite(largest):
        return ""
    return "█" * max(1, round(width * (1 + math.log10(norm / largest) / 6)))

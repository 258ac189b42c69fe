"""Norms of values and cotangents along a pipeline: where do gradients vanish or explode?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from chainrule.harvest import Stats
from chainrule.view._picture import CHARACTER, Arrow, Circle, Drawing, Label, Picture, Shape

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
        return _draw(self.rows)

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


_WIDTH, _LINE, _TOP = 320.0, 24.0, 58.0
_VALUE, _COTANGENT, _GRID, _WRONG = "#4f46e5", "#d97706", "#e5e7eb", "#b91c1c"


def _draw(rows: Sequence[FlowRow]) -> Drawing:
    """Two chains of dots from the first value down to the last; numbers stand beside them."""
    values = [row.value_norm for row in rows]
    cotangents = [row.cotangent_norm for row in rows]
    left = 32 + CHARACTER * max((len(row.name) for row in rows), default=0)
    right = left + _WIDTH
    low, high = _decades([*values, *cotangents])

    def across(norm: float) -> float:
        return left + _WIDTH * (math.log10(norm) - low) / (high - low)

    bottom = _TOP + _LINE * len(rows)
    shapes: list[Shape] = [*_legend(left), *_grid(low, high, across, bottom)]
    for norms, colour in ((values, _VALUE), (cotangents, _COTANGENT)):
        places = [(across(n), _height(k)) for k, n in enumerate(norms) if _is_drawn(n)]
        if len(places) > 1:
            shapes.append(Arrow(tuple(places), colour, has_head=False))
        shapes += [Circle(place, 4.0, colour, colour) for place in places]
    for number, row in enumerate(rows):
        shapes += _texts(row, _height(number), right)
    return Drawing(tuple(shapes), right + 190, bottom + 16, "Norms of values and cotangents")


def _height(row: int) -> float:
    return _TOP + _LINE * (row + 0.5)


def _is_drawn(norm: float | None) -> TypeGuard[float]:
    return norm is not None and norm > 0 and math.isfinite(norm)


def _decades(norms: Sequence[float | None]) -> tuple[int, int]:
    """Powers of ten around all norms that have a place on a logarithmic scale."""
    exponents = [math.log10(norm) for norm in norms if _is_drawn(norm)]
    low, high = math.floor(min(exponents, default=0.0)), math.ceil(max(exponents, default=1.0))
    return low, max(high, low + 1)


def _legend(left: float) -> list[Shape]:
    words = (("value", _VALUE), ("cotangent", _COTANGENT))
    shapes: list[Shape] = []
    for k, (word, colour) in enumerate(words):
        x = left + 90 * k
        shapes.append(Circle((x, 16), 4.0, colour, colour))
        shapes.append(Label(word, (x + 10, 16), starts_here=True))
    return shapes


def _grid(low: int, high: int, across: Callable[[float], float], bottom: float) -> list[Shape]:
    step = max(1, math.ceil((high - low) / 6))
    shapes: list[Shape] = []
    for exponent in range(low, high + 1, step):
        x = across(10.0**exponent)
        shapes.append(Arrow(((x, _TOP - 4), (x, bottom)), _GRID, 1.0, has_head=False))
        shapes.append(Label(f"1e{exponent}", (x, _TOP - 14), is_faint=True))
    return shapes


def _texts(row: FlowRow, y: float, right: float) -> list[Shape]:
    colour = _WRONG if row.nonfinite else None
    norms = ", ".join(_number(norm) or "–" for norm in (row.value_norm, row.cotangent_norm))
    note = f"{norms}  {row.nonfinite} not finite" if row.nonfinite else norms
    return [
        Label(row.name, (16, y), starts_here=True, is_strong=True, colour=colour),
        Label(note, (right + 20, y), starts_here=True, is_faint=not row.nonfinite, colour=colour),
    ]

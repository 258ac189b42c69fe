"""Orders, Jacobian blocks, explanations and plans for people: tables as text and as HTML, and a pattern."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from chainrule.elimination._orders import Order
    from chainrule.elimination._result import StructuredJacobian

_MOST_CELLS = 48
_MOST_ENTRIES = 1_000_000
_MOST_VERTICES = 60
_SIDE = 160.0


def order_html(order: Order) -> str:
    """What is known about an order, and its vertices."""
    found = order.cost is not None
    verdict = (
        "optimal"
        if order.optimal
        else "no bound known"
        if order.gap is None
        else f"at most {order.gap:.1%} above the optimum"
    )
    shown = " ".join(map(str, order.vertices[:_MOST_VERTICES]))
    more = len(order) - _MOST_VERTICES
    facts = {
        order.objective: f"{order.cost:,} ({verdict})" if found else "not counted",
        "lower bound": "unknown" if order.bound is None else f"{order.bound:,}",
        "found by": f"{order.method} in {order.seconds:.3g} s",
        f"{len(order)} vertices": f"{shown} … and {more} more" if more > 0 else shown,
    }
    return f"<strong>Order</strong>{_table(facts)}"


def jacobian_html(jacobian: StructuredJacobian) -> str:
    """What a block is, and where its entries are."""
    total = math.prod(jacobian.shape)
    share = f" ({jacobian.nse / total:.2%})" if total else ""
    facts = {
        "output ← input": f"{list(jacobian.out_shape)} ← {list(jacobian.in_shape)}",
        "dtype": jacobian.dtype.name,
        "entries": f"{jacobian.nse:,} of {total:,}{share}",
        "structure": jacobian.structure.kind,
    }
    return f"<strong>StructuredJacobian</strong>{_table(facts)}{_pattern(jacobian)}"


@dataclass(frozen=True)
class NotedTable:
    """A table with sentences below it, as text and for a notebook.

    Attributes:
        columns: their names.
        rows: the cells.
        notes: the sentences.
        width: of the text, in characters.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    width: int

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(*self.columns)
        for row in self.rows:
            table.add_row(*row)
        text = io.StringIO()
        console = Console(file=text, width=self.width)
        console.print(table)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        return text.getvalue()

    def html(self) -> str:
        """The same for a notebook."""
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><tr>{head}</tr>{body}</table>{notes}"


def _table(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def _pattern(jacobian: StructuredJacobian) -> str:
    """Cells of a coarse grid, the darker the fuller; nothing for blocks too large to look at."""
    height, width = math.prod(jacobian.out_shape), math.prod(jacobian.in_shape)
    if not 0 < jacobian.nse <= _MOST_ENTRIES or not height or not width:
        return ""
    rows, columns = min(height, _MOST_CELLS), min(width, _MOST_CELLS)
    row, column = jacobian.coordinates()
    cells, counts = np.unique((row * rows // height) * columns + column * columns // width,
                              return_counts=True)  # fmt: skip
    fullness = counts * (rows * columns) / (height * width)
    size = _SIDE / max(rows, columns)
    squares = "".join(
        f"<rect x='{cell % columns * size:.2f}' y='{cell // columns * size:.2f}' width='{size:.2f}' "
        f"height='{size:.2f}' fill='#4f46e5' fill-opacity='{min(1.0, 0.25 + 0.75 * full):.2f}'/>"
        for cell, full in zip(cells.tolist(), fullness.tolist(), strict=True)
    )
    w, h = columns * size, rows * size
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{w:.0f}' height='{h:.0f}' role='img' "
        f"viewBox='0 0 {w:.2f} {h:.2f}'><title>where the entries are</title>"
        f"<rect width='100%' height='100%' fill='#fff' stroke='#888'/>{squares}</svg>"
    )

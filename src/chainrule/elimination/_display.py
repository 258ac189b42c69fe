"""Orders, Jacobian blocks, explanations and plans for people: tables as text and as HTML."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from chainrule._registry import provided
from chainrule._tables import html_table

if TYPE_CHECKING:
    from chainrule.elimination._orders import Order
    from chainrule.elimination._result import StructuredJacobian

_MOST_ENTRIES = 1_000_000
"""Of a block that is drawn."""
_MOST_VERTICES = 60


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
    return "<strong>Order</strong>" + html_table(facts.items(), has_row_heads=True)


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
    picture = provided("spy_picture")(jacobian).svg() if jacobian.nse <= _MOST_ENTRIES else ""
    table = html_table(facts.items(), has_row_heads=True)
    return f"<strong>StructuredJacobian</strong>{table}{picture}"


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
        console = Console(file=text, width=self.width, color_system=None, force_jupyter=False)
        console.print(table)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        return text.getvalue()

    def html(self) -> str:
        """The same for a notebook."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return html_table(self.rows, head=self.columns) + notes

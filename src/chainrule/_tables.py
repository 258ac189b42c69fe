"""Tables: in HTML, for notebooks and pages, and as text with sentences below them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


class Html(str):
    """The content of a cell that is HTML already; other text is escaped."""

    __slots__ = ()


def html_table(
    rows: Iterable[Sequence[str]],
    *,
    head: Sequence[str] = (),
    has_row_heads: bool = False,
    is_styled: bool = True,
) -> str:
    """A table of text.

    Args:
        rows: the cells, text or `Html`.
        head: the names of the columns, if they have some.
        has_row_heads: whether the first cell of a row says what the row is about.
        is_styled: align cells to the left, which notebooks do not. Pages have their own style, and forbid
            that of single elements.

    Example:
        >>> html_table([("a", "<b>")], is_styled=False)
        '<table><tbody><tr><td>a</td><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    style = ' style="text-align:left"' if is_styled else ""

    def cell(text: str, scope: str | None = None) -> str:
        tag, facts = ("td", style) if scope is None else ("th", f' scope="{scope}"{style}')
        return f"<{tag}{facts}>{text if isinstance(text, Html) else escape(text)}</{tag}>"

    def row(cells: Sequence[str]) -> str:
        heads = int(has_row_heads)
        return "".join(
            [*(cell(c, "row") for c in cells[:heads]), *(cell(c) for c in cells[heads:])]
        )

    body = "".join(f"<tr>{row(cells)}</tr>" for cells in rows)
    titles = "".join(cell(name, "col") for name in head)
    thead = f"<thead><tr>{titles}</tr></thead>" if head else ""
    return f"<table>{thead}<tbody>{body}</tbody></table>"


def as_text(*shown: Any, width: int) -> str:
    """What rich would print, without colours."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, force_jupyter=False)
    for each in shown:
        console.print(each)
    return text.getvalue()


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
        from rich.table import Table
        from rich.text import Text

        table = Table(*self.columns)
        for row in self.rows:
            table.add_row(*row)
        return as_text(table, *map(Text, self.notes), width=self.width)

    def html(self) -> str:
        """The same for a notebook."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return html_table(self.rows, head=self.columns) + notes

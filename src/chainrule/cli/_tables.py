"""Tables for people."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from chainrule._visible import visible

_MAX_FIRST = 32  # characters that the first column takes from the others, if it must


def table_text(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text."""
    return renderable_text(make_table(title, columns, rows))


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """A table that rich can show. Nothing is cut, and the first column, which people copy, not broken."""
    from rich.markup import escape
    from rich.table import Column, Table

    rows = list(rows)
    widest = max((len(row[0]) for row in rows), default=0)
    first, *others = columns
    table = Table(
        Column(first, overflow="fold", min_width=min(widest, _MAX_FIRST)),
        *(Column(name, overflow="fold") for name in others),
        title=escape(visible(title)),
        title_justify="left",
        show_header=any(columns),
    )
    for row in rows:
        table.add_row(*(escape(visible(cell)) for cell in row))
    return table


def renderable_text(renderable: Any) -> str:
    """Anything that rich can show, as text that fits the terminal."""
    from rich.console import Console

    stream = io.StringIO()
    # No colours, whatever the environment asks for: they would be shown as text of others is.
    width = Console(stderr=True).width
    Console(file=stream, width=width, force_terminal=False, color_system=None).print(renderable)
    return stream.getvalue()

"""The cell of a notebook that runs now, and the progress bar in it, which needs no ipywidgets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape


def display_in_cell(html: str) -> Callable[[str], object] | None:
    """Show HTML in the cell of a notebook that runs now, if one does; what puts other HTML in its place."""
    module = sys.modules.get("IPython")  # a notebook has imported it
    shell = None if module is None else module.get_ipython()
    if shell is None:
        return None
    from IPython.display import display
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    if isinstance(shell, TerminalInteractiveShell):
        return None

    shown = display({"text/html": html}, raw=True, display_id=True)
    return lambda later: shown.update({"text/html": later}, raw=True)


def bar_html(label: str, share: float | None, elapsed_s: float, note: str = "") -> str:
    """A progress bar.

    Args:
        label: what it is about.
        share: how much of the whole is done; `None` where that is not known.
        elapsed_s: how long it has taken so far.
        note: what stands behind.
    """
    value = "" if share is None else f' value="{share:.4g}" max="1"'
    percent = "" if share is None else f"{100 * share:.0f} %"
    words = " · ".join(filter(None, (label, percent, f"{elapsed_s:.0f} s", note)))
    return f'<progress aria-label="{escape(label)}"{value}></progress> {escape(words)}'

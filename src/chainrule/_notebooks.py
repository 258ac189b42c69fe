"""The cell of a notebook that runs now."""

from __future__ import annotations

import sys
from collections.abc import Callable


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

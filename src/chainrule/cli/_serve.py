"""`chainrule serve`: hands over to the server's own command line."""

from __future__ import annotations

from collections.abc import Sequence

from chainrule.cli._failures import failures

__all__ = ["serve"]


def serve(arguments: Sequence[str]) -> None:
    """Serve components; the options are the server's."""
    from chainrule.serve import serve as run_server

    with failures():
        run_server(arguments)

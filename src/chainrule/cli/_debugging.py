"""`--debug-port`: a debugger (debugpy) attaches to the process that runs the component."""

from __future__ import annotations

import logging

from chainrule._errors import InputError, missing_dependency
from chainrule.cli._sources import Arguments

_HOST = "127.0.0.1"  # a debugger that attaches can run anything in this process

logger = logging.getLogger(__name__)


def add_debug_port(parser: Arguments, what: str) -> None:
    """The port that a debugger attaches to."""
    parser.add_argument(
        "--debug-port",
        type=int,
        metavar="PORT",
        help=f"Accept a debugger (debugpy) on this port of loopback; {what} (default: no debugger)",
    )


def accept_debugger(port: int, *, wait: bool) -> None:
    """Accept a debugger, and say so on standard error.

    Args:
        port: of loopback; 0 is one that is free.
        wait: return only when a debugger has attached.

    Raises:
        CapabilityError: debugpy is not installed (`missing_dependency`).
        InputError: the port cannot be listened on.
    """
    try:
        import debugpy
    except ImportError as error:
        raise missing_dependency("--debug-port needs", "debugpy", "debugpy") from error
    try:
        _, port = debugpy.listen((_HOST, port))
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"A debugger cannot be accepted on {_HOST}:{port}: {error}.", code="port_in_use"
        ) from error
    # tesseract-core writes the same line, and tools look for it.
    logger.warning("Debugger listening on %s:%d", _HOST, port)
    if wait:
        debugpy.wait_for_client()

"""How a process ended, for programs and for people."""

from __future__ import annotations

import signal
from typing import Any


def ending_facts(status: int | None) -> dict[str, Any]:
    """`{"signal": name}` of a process that a signal ended, `{"exit_code": …}` of any other.

    Args:
        status: as `subprocess.Popen.returncode` has it.
    """
    if status is None or status >= 0:
        return {"exit_code": status}
    try:
        return {"signal": signal.Signals(-status).name}
    except ValueError:  # most real-time signals have no name
        return {"signal": f"signal {-status}"}


def ending_words(status: int | None) -> str:
    """The same as the end of a sentence: `by SIGKILL`, `with status 3`."""
    facts = ending_facts(status)
    return f"by {facts['signal']}" if "signal" in facts else f"with status {facts['exit_code']}"

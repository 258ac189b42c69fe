"""From a user's function to a flat program: trace, then inline every call that only means "run this"."""

from __future__ import annotations

from chainrule._jaxpr import CALLS, ClosedJaxpr, inline_calls

__all__ = ["flatten"]

# Rematerialisation changes what is kept for a backward pass; elimination keeps nothing for later.
_INLINED = CALLS | {"remat", "remat2", "checkpoint"}


def flatten(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program without call-like equations."""
    return inline_calls(program, _INLINED)

"""A program as text, and where in the user's source an equation comes from."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jax.extend.core import Jaxpr, JaxprEqn

from chainrule._jaxpr._names import user_frames_of


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's program. `str()` gives `file:line (function)`."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


def locate(eqn: JaxprEqn) -> SourceLocation | None:
    """The user's line that made an equation; `None` when JAX kept no traceback."""
    return next(iter(call_sites(eqn, 1)), None)


def call_sites(eqn: JaxprEqn, count: int) -> tuple[SourceLocation, ...]:
    """The user's line that made an equation and the calls that led there, innermost first."""
    return tuple(
        SourceLocation(frame.file_name, frame.start_line, frame.function_name)
        for frame in itertools.islice(user_frames_of(eqn), count)
    )


def plain_text(jaxpr: Jaxpr) -> str:
    """A program as JAX prints it, never in colours: `str` writes those on a terminal and in a notebook."""
    return jaxpr.pretty_print(use_color=False)

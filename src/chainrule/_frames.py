"""Which lines of a traceback a user looks for: not of Chainrule, of Python or of an installed package."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parent) + os.sep
_TYPED = ("<ipython-input", "<stdin>")  # names of what is typed into IPython and Python
_MAX_FRAMES = 200  # that are kept: endless recursion has as many as one likes


def is_ours(file: str) -> bool:
    """Whether a file is of Chainrule."""
    return file.startswith(_OURS)


def is_typed(file: str) -> bool:
    """Whether code was typed into IPython or Python."""
    return file.startswith(_TYPED)


def place_text(file: str, line: int) -> str:
    """A line of code for people; of typed code, whose file says nothing to them, its number only."""
    is_cell = is_typed(file) or Path(file).parent.name.startswith("ipykernel_")
    return f"line {line}" if is_cell else f"{Path(file).name}, line {line}"


def is_generated(file: str) -> bool:
    """Whether code has no lines to look at: what `dataclass`, `eval` and the like make."""
    return file.startswith("<") and not is_typed(file)


def is_installed(file: str) -> bool:
    """Whether a file is of Python or of an installed package, or none. Extensions name theirs relatively."""
    if is_typed(file):
        return False
    path = Path(file)
    return (
        not path.is_absolute()
        or file.startswith(sysconfig.get_path("stdlib"))
        or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    )


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an error and of what caused it, as one, with the lines of the user only."""
    frames: list[TracebackType] = []
    cause: BaseException | None = error
    while cause is not None and len(frames) < _MAX_FRAMES:
        frames += _own_frames(cause.__traceback__)
        cause = cause.__cause__
    result = None
    for frame in reversed(frames[-_MAX_FRAMES:]):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


def _own_frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not is_ours(file) and not is_installed(file):
            yield traceback
        traceback = traceback.tb_next

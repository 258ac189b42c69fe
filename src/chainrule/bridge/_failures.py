"""Exceptions that cross XLA, which knows only text.

The text of a failure says everything a reader needs, and ends in a number under which the exception itself
waits here for a while. Where JAX raises the text, `chainrule._jaxpr.restore_errors` asks for it back.
"""

from __future__ import annotations

import itertools
import re
import traceback

from chainrule._errors import ComponentError
from chainrule._trees import LRUCache

__all__ = ["find_failure", "report_failure"]

_numbers = itertools.count(1)
_recent: LRUCache[int, BaseException] = LRUCache(64)
_NUMBER = re.compile(r"\[chainrule failure (\d+)\]")


def report_failure(error: BaseException, where: str) -> str:
    """Keep an exception for `find_failure` and describe it for XLA."""
    # The frames hold views of buffers that XLA is about to reuse.
    traceback.clear_frames(error.__traceback__)
    _note(error, f"Raised in {where}.")
    if isinstance(error, ComponentError) and error.remote_traceback is not None:
        _note(error, f"Remote traceback:\n{error.remote_traceback}")
    number = next(_numbers)
    _recent.put(number, error)
    text = "".join(traceback.format_exception(error))
    return f"{type(error).__name__}: {error}\n\n{text}\n[chainrule failure {number}]"


def _note(error: BaseException, note: str) -> None:
    """Add a note once: an author may raise one object again and again."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def find_failure(text: str) -> BaseException | None:
    """The exception that a text of `report_failure` stands for, if it is one and not too old."""
    # The last number: the text of an outer component's failure quotes that of an inner one.
    numbers = _NUMBER.findall(text)
    return _recent.get(int(numbers[-1])) if numbers else None

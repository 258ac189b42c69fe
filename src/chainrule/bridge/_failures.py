"""Exceptions that cross XLA, which knows only text.

The text of a failure says everything a reader needs, and ends in a number under which the exception itself
waits here for a while. Where JAX raises the text, `chainrule._jaxpr.restore_errors` asks for it back.
"""

from __future__ import annotations

import itertools
import re
import traceback

import numpy as np

from chainrule._errors import ComponentError
from chainrule._trees import LRUCache

__all__ = ["find_failure", "report_failure"]

_numbers = itertools.count(1)
_recent: LRUCache[int, BaseException] = LRUCache(64)
_NUMBER = re.compile(r"\[chainrule failure (\d+)\]")


def report_failure(error: BaseException, where: str, *arrays: list[np.ndarray]) -> str:
    """Keep an exception for `find_failure` and describe it for XLA.

    Args:
        error: the exception, which keeps the frames that it came through.
        where: what was being done.
        arrays: lists that a frame holds which is still running; they are emptied.
    """
    for each in arrays:
        each.clear()
    _clear_frames(error)
    _note(error, f"Raised in {where}.")
    if isinstance(error, ComponentError) and error.remote_traceback is not None:
        _note(error, f"Remote traceback:\n{error.remote_traceback}")
    number = next(_numbers)
    _recent.put(number, error)
    text = "".join(traceback.format_exception(error))
    return f"{type(error).__name__}: {error}\n\n{text}\n[chainrule failure {number}]"


def _clear_frames(error: BaseException) -> None:
    """Forget what the frames hold: views of buffers that XLA is about to reuse, and copies of them."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [each.__cause__, each.__context__]


def _note(error: BaseException, note: str) -> None:
    """Add a note once: an author may raise one object again and again."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def find_failure(text: str) -> BaseException | None:
    """The exception that a text of `report_failure` stands for, if it is one and not too old."""
    # The last number: the text of an outer component's failure quotes that of an inner one.
    numbers = _NUMBER.findall(text)
    return _recent.get(int(numbers[-1])) if numbers else None

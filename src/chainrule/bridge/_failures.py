"""Exceptions that cross XLA.

XLA carries an error as a status, which is a code and a text, and JAX raises it from C++ as a
`JaxRuntimeError`, possibly later and elsewhere (dispatch is asynchronous). No Python code of anybody runs in
between that could put the type, or a cause, back: `jax.pure_callback` loses them too. So the text says
everything a reader needs, first the author's own type and message, then the traceback, and it ends in a
number under which the exception object itself waits here for a while: `original_error` finds it,
`component_errors` raises it.
"""

from __future__ import annotations

import itertools
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from chainrule._errors import ComponentError
from chainrule._trees import LRUCache

__all__ = ["component_errors", "original_error", "report_failure"]

_numbers = itertools.count(1)
_recent: LRUCache[int, BaseException] = LRUCache(64)
_HINT = (
    "A compiled program carries errors as text. To catch the exception itself, wait for the results inside "
    "`with chainrule.bridge.component_errors():`."
)
_NUMBER = re.compile(r"\[chainrule failure (\d+)\]")


def report_failure(error: BaseException, where: str) -> str:
    """Keep an exception for `original_error` and describe it for XLA."""
    # The frames hold views of buffers that XLA is about to reuse.
    traceback.clear_frames(error.__traceback__)
    number = next(_numbers)
    _recent.put(number, error)
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    return (
        f"{type(error).__name__}: {error}{notes}\n\n"
        f"Raised in {where}.\n{_traceback_text(error)}\n{_HINT}\n[chainrule failure {number}]"
    )


def _traceback_text(error: BaseException) -> str:
    remote = error.remote_traceback if isinstance(error, ComponentError) else None
    local = "".join(traceback.format_exception(error))
    return local if remote is None else f"Remote traceback:\n{remote}\n\nLocal traceback:\n{local}"


def original_error(error: BaseException) -> BaseException | None:
    """The exception of the component behind an error that JAX raised, or `None` if it is not one of ours.

    Example:
        >>> from chainrule.bridge import original_error
        >>> original_error(RuntimeError("something else")) is None
        True
    """
    # The last number: the text of an outer component's failure quotes that of an inner one.
    numbers = _NUMBER.findall(str(error))
    return _recent.get(int(numbers[-1])) if numbers else None


@contextmanager
def component_errors() -> Iterator[None]:
    """Raise a component's own exception where JAX would raise a `JaxRuntimeError` that only quotes it.

    Use it around calls of compiled functions, and wait for the results inside it. It also works as a
    decorator. The exception has its own type, message and traceback.

    Example:
        >>> from chainrule.bridge import component_errors
        >>> import jax
        >>> with component_errors():
        ...     total = jax.block_until_ready(jax.jit(sum)([1, 2]))
    """
    try:
        yield
    except Exception as error:
        original = original_error(error)
        if original is None:
            raise
        original.__suppress_context__ = True  # `from None` would drop its cause
        raise original  # noqa: B904

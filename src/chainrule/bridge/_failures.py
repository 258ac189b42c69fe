"""Exceptions that cross XLA, which knows only text.

A compiled program that fails raises a `JaxRuntimeError`, or a plain `ValueError` where JAX runs a small
program at once. Its text names the component, the code, the author's exception and the last lines of the
author's code, and ends in a number under which the exception itself waits here for a while:
`component_errors` raises it in place of the text. Text decides here, because XLA carries nothing else; what
is recognised is text that was written here, never the words of another library.
"""

from __future__ import annotations

import itertools
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from types import TracebackType
from typing import NamedTuple

import numpy as np

from chainrule._errors import ChainruleError, ComponentError, InputError
from chainrule._frames import is_installed, is_ours
from chainrule._lru_cache import LRUCache

_NUMBER = re.compile(r"\[chainrule failure (\d+)\]")


class _Failure(NamedTuple):
    error: BaseException
    traceback: TracebackType | None
    text: str


_numbers = itertools.count(1)
_recent: LRUCache[int, _Failure] = LRUCache(64)


@contextmanager
def component_errors() -> Iterator[None]:
    """Raise the exceptions of components as they are, also out of compiled programs.

    A context, and by `@component_errors()` a decorator. JAX reports the failure of a compiled program when
    its results are used: block inside (`jax.block_until_ready`). An exception that is not a component's
    passes unchanged, and so does a failure with more than 64 others after it.

    Raises:
        Exception: what the component raised: the author's exception for `from_callable`, and for components a
            `ComponentError` whose `__cause__` it is where the component runs in this process.

    Example:
        >>> import jax, numpy as np
        >>> from chainrule import component_errors, from_callable
        >>> def solve(x):
        ...     raise ArithmeticError("no convergence")
        >>> program = jax.jit(from_callable(solve, abstract=lambda x: x))
        >>> try:
        ...     with component_errors():
        ...         jax.block_until_ready(program(np.ones(3)))
        ... except ArithmeticError as error:
        ...     print(error)
        no convergence
    """
    try:
        yield
        return
    except Exception as error:
        failure = _behind(error)
        if failure is None:
            raise
    # Python sets `__context__` of what is raised to the error that is being handled here, XLA's text. The
    # exception keeps what it had.
    context = failure.error.__context__
    try:
        raise failure.error.with_traceback(failure.traceback)
    finally:
        failure.error.__context__ = context


def report_failure(error: BaseException, where: str, *arrays: list[np.ndarray]) -> str:
    """Keep an exception for `component_errors` and describe it for XLA.

    Args:
        error: the exception, which keeps the frames that it came through.
        where: what was being done: the endpoint and the component.
        arrays: lists that a frame holds which is still running; they are emptied.
    """
    for each in arrays:
        each.clear()
    inner = _behind(error)
    if inner is not None:
        # The author runs a compiled program in which another component has failed.
        error = inner.error
    _clear_frames(error)
    _note(error, f"Raised in {where}.")
    if isinstance(error, ComponentError) and error.remote_traceback is not None:
        _note(error, f"Remote traceback:\n{error.remote_traceback}")
    number = next(_numbers)
    text = (
        f"{_headline(error, where)}\n\n{_lines_of_authors(error)}\n"
        "`with chainrule.component_errors():` around the call raises the exception itself.\n"
        f"[chainrule failure {number}]"
    )
    _recent.put(number, _Failure(error, error.__traceback__, text))
    return text


def _headline(error: BaseException, where: str) -> str:
    """Component, code and exception in one line; our own exceptions tell their code."""
    code = "" if isinstance(error, ChainruleError) else " [component_failed]"
    return f"{where} raised {type(error).__name__}: {error}{code}"


def _lines_of_authors(error: BaseException) -> str:
    """The traceback without the frames between XLA and the author."""
    described = traceback.TracebackException.from_exception(error)
    if isinstance(
        error, InputError
    ):  # says all; its cause is a report of pydantic, with the data in it
        described.__cause__, described.__suppress_context__ = None, True
    seen: set[int] = set()
    chain: list[traceback.TracebackException | None] = [described]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            frames = [frame for frame in each.stack if not is_ours(frame.filename)]
            own = list(dropwhile(lambda frame: is_installed(frame.filename), frames))
            each.stack = traceback.StackSummary.from_list(own or frames)
            chain += [each.__cause__, each.__context__]
    return "".join(described.format())


def _clear_frames(error: BaseException) -> None:
    """Forget what the frames hold: among it are views of buffers that XLA is about to reuse."""
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


def _behind(error: BaseException) -> _Failure | None:
    """The failure that an error of JAX stands for, if it is one and not too old."""
    text = str(error)
    # The last number: the text of an outer component's failure quotes that of an inner one.
    numbers = _NUMBER.findall(text)
    failure = _recent.get(int(numbers[-1])) if numbers else None
    if failure is None or type(error).__module__.split(".")[0] in ("jax", "jaxlib"):
        return failure
    # An author's exception may quote a failure. JAX's `ValueError` has XLA's status code and
    # the text, and nothing else.
    is_of_jax = type(error) is ValueError and text == f"UNKNOWN: {failure.text}"
    return failure if is_of_jax else None

"""Progress of a call: the author reports it, the process that waits for the call receives it.

    progress(0.4, "factorising")        anywhere in an endpoint, as often as needed

Without a listener it does nothing. Steps of a longer computation (`steps`) narrow what is reported inside
them, so that the `apply` calls of a finite-difference Jacobian move one bar from 0 to 1, once.

A call finds its listener in a context variable. Threads that author code or a framework starts do not inherit
that, so a process that answers one call at a time (a worker) has a process-wide listener beside it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from chainrule._errors import DefinitionError
from chainrule._notebooks import bar_html, display_in_cell

T = TypeVar("T")
Emit = Callable[[float, str], None]

# Reports that follow each other faster than this are dropped, except the last and those with a new message.
_MIN_PAUSE_S = 0.05

PATIENCE_S = 2.0
"""How long work takes before a terminal shows a bar for it."""


class Listener:
    """Receives the progress of one call. Safe between threads.

    Args:
        emit: called with a fraction between 0 and 1 that never falls, and a message.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._range = (0.0, 1.0)
        self._fraction = 0.0
        self._message = ""
        self._next = float("-inf")

    def report(self, fraction: float, message: str) -> None:
        """Pass on how far along the current step is."""
        with self._lock:
            start, stop = self._range
            absolute = start + (stop - start) * min(max(float(fraction), 0.0), 1.0)
            now = time.monotonic()
            is_new = message != self._message or absolute >= 1.0
            if not is_new and (now < self._next or absolute <= self._fraction):
                return
            self._fraction = max(self._fraction, absolute)
            self._message = message
            self._next = now + _MIN_PAUSE_S
            # Inside the lock, so that reports of several threads arrive in the order of their fractions.
            # So `emit` must not report progress itself.
            self._emit(self._fraction, message)

    @contextmanager
    def narrowed(self, start: float, stop: float) -> Iterator[None]:
        """Let reports inside mean this part of the current range."""
        low, high = outer = self._range
        self._range = (low + (high - low) * start, low + (high - low) * stop)
        try:
            yield
        finally:
            self._range = outer


_of_context: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)
_of_process: Listener | None = None


def _current() -> Listener | None:
    return _of_context.get() or _of_process


def progress(fraction: float, message: str = "") -> None:
    """Say how far along the call is.

    Args:
        fraction: between 0 and 1; others are clipped. A fraction that falls back is not shown.
        message: what is being done, in a few words.

    Raises:
        DefinitionError: the message is not text, as in `progress(step, steps)` (`bad_progress`).

    Example:
        >>> progress(0.5, "half of the time steps")
    """
    if not isinstance(message, str):
        meant = "; for step k of n, write `progress(k / n)`" if isinstance(message, int) else ""
        raise DefinitionError(
            "`progress` takes a fraction between 0 and 1, and a message that is text; found "
            f"{type(message).__name__} in place of the text{meant}.",
            code="bad_progress",
        )
    listener = _current()
    if listener is not None:
        listener.report(fraction, message)


def is_heard() -> bool:
    """Whether the progress of this call has a listener."""
    return _current() is not None


@contextmanager
def listening(emit: Emit, *, whole_process: bool = False) -> Iterator[None]:
    """Receive the progress of what is called inside.

    Args:
        emit: called with fraction and message, on the thread that reports.
        whole_process: also for threads that were started without this context. Only for processes that
            answer one call at a time.
    """
    global _of_process
    listener = Listener(emit)
    token = _of_context.set(listener)
    before = _of_process
    if whole_process:
        _of_process = listener
    try:
        yield
    finally:
        _of_context.reset(token)
        if whole_process:
            _of_process = before


@contextmanager
def unheard() -> Iterator[None]:
    """Drop the progress of what is called inside: it prepares the call and is not a part of it."""
    listener = _current()
    if listener is None:
        yield
        return
    with listener.narrowed(0.0, 0.0):
        yield


def steps(items: Iterable[T], total: int, message: str = "") -> Iterator[T]:
    """Yield the items, and report how many were made; making each of them is a step of its own."""
    listener = _current()
    if listener is None:
        yield from items
        return
    iterator = iter(items)
    for done in range(total):
        with listener.narrowed(done / total, (done + 1) / total):
            try:
                item = next(iterator)
            except StopIteration:
                return
        listener.report((done + 1) / total, message)
        yield item
    yield from iterator


def track(items: Iterable[T], description: str, total: int, *, show: bool = True) -> Iterator[T]:
    """Yield the items, and report the progress as `steps` does; show a bar when the work is long.

    The bar is in the cell of a notebook, or on stderr where that is a terminal, once the work has taken
    `PATIENCE_S`: a component's standard output stays the result, and short work stays silent.
    """
    with progress_bar(description, total, show=show) as advance:
        for done, item in enumerate(steps(items, total, description), start=1):
            yield item
            advance(done)


class Advance(Protocol):
    """Draws how far the work is, and a note beside its description."""

    def __call__(self, done: float, note: str = "") -> None: ...


@contextmanager
def progress_bar(description: str, total: float | None, *, show: bool = True) -> Iterator[Advance]:
    """What draws how far the work is, under the conditions that `track` states.

    Args:
        description: of the work.
        total: how far it goes, in steps or in any other unit; `None` where that is not known.
        show: whether it is drawn at all.
    """
    bar: _TerminalBar | _NotebookBar | None = None
    start = time.monotonic()

    def advance(done: float, note: str = "") -> None:
        nonlocal bar
        if bar is None and show and time.monotonic() - start > PATIENCE_S:
            bar = _start_bar(description, total, start)
        if bar is not None:
            bar.draw(done, note)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(
    description: str, total: float | None, start: float
) -> _TerminalBar | _NotebookBar | None:
    put = display_in_cell("")
    if put is not None:
        return _NotebookBar(description, total, start, put)
    return _TerminalBar(description, total) if sys.stderr.isatty() else None


class _TerminalBar:
    """A bar of rich, which disappears at the end."""

    def __init__(self, description: str, total: float | None) -> None:
        # Imported only when a bar is shown: most calls never show one.
        from rich.console import Console
        from rich.progress import Progress

        self._description = description
        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(description, total=total)
        self._progress.start()

    def draw(self, done: float, note: str) -> None:
        shown = f"{self._description} {note}".rstrip()
        self._progress.update(self._task, completed=done, description=shown)

    def stop(self) -> None:
        self._progress.stop()


class _NotebookBar:
    """A bar that stays in the notebook, as far as it came. It changes at most twenty times a second."""

    def __init__(
        self, description: str, total: float | None, start: float, put: Callable[[str], object]
    ) -> None:
        self._description = description
        self._total = total
        self._start = start
        self._put = put
        self._next = float("-inf")
        self._last: tuple[float, str] = (0.0, "")

    def draw(self, done: float, note: str) -> None:
        self._last = done, note
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _MIN_PAUSE_S
            share = done / self._total if self._total else None
            self._put(bar_html(self._description, share, now - self._start, note))

    def stop(self) -> None:
        done, note = self._last
        share = done / self._total if self._total else 1.0
        self._put(bar_html(self._description, share, time.monotonic() - self._start, note))

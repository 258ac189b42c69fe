"""Calls that run while the caller does something else, and the progress bar that shows them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from chainrule._errors import ChainruleError, TransportError
from chainrule._notebooks import bar_html, display_in_cell
from chainrule._progress import listening
from chainrule._visible import visible
from chainrule.client._transport import Ticket

if TYPE_CHECKING:
    from rich.progress import Task

Show = bool | Callable[[float, str], Any]
"""Whether a progress bar is shown, or what is called with fraction and message in its place."""


class Job(ABC):
    """A call that is under way: wait for it with `result`, `await` it, or `cancel` it.

    Attributes:
        label: what is called, for people.
    """

    label: str

    def __repr__(self) -> str:
        return f"<Job {self.label}: {self.status}>"

    @property
    @abstractmethod
    def status(self) -> str:
        """`waiting`, `running`, `done`, `failed` or `cancelled`."""

    @property
    @abstractmethod
    def fraction(self) -> float | None:
        """How far along it is, between 0 and 1, if the component says so with `progress`; 1 when done."""

    @property
    @abstractmethod
    def message(self) -> str | None:
        """What it is doing, if the component says so."""

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.status in ("done", "failed", "cancelled")

    @abstractmethod
    def result(self, timeout: float | None = None, *, progress: Show = False) -> Any:
        """The answer of the call, waited for.

        Args:
            timeout: seconds to wait; `None` waits until there is an answer.
            progress: show a progress bar, or call this with fraction and message.

        Raises:
            TimeoutError: no answer yet; the call goes on.
            ChainruleError: what the call raised; `cancelled` when it was cancelled.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Give the call up."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    @abstractmethod
    async def _wait(self) -> Any:
        """The answer, for asynchronous code; cancelling the task cancels the call."""

    def _cancelled(self) -> TransportError:
        return TransportError(f"The call of {self.label} was cancelled.", code="cancelled")


class CallJob(Job):
    """A call on a thread of this process.

    Args:
        executor: runs the call.
        function: the call; it takes a ticket with which it can be cancelled.
        label: what is called, for people.
    """

    def __init__(self, executor: Executor, function: Callable[[Ticket], Any], label: str) -> None:
        self.label = label
        self._ticket = Ticket()
        self._progress: tuple[float, str] | None = None
        self._show: Callable[[float, str], Any] | None = None
        self._future: Future[Any] = executor.submit(self._run, function)

    @property
    def status(self) -> str:
        """`waiting`, `running`, `done`, `failed` or `cancelled`."""
        if self._ticket.is_cancelled:
            return "cancelled"
        if not self._future.done():
            return "running" if self._future.running() else "waiting"
        return "failed" if self._future.exception() else "done"

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._future.done()

    @property
    def fraction(self) -> float | None:
        """How far along it is; known for components in this process, and of every call that is done."""
        if self.status == "done":
            return 1.0
        return None if self._progress is None else self._progress[0]

    @property
    def message(self) -> str | None:
        """What it is doing; known for components in this process."""
        return None if self._progress is None else self._progress[1] or None

    def result(self, timeout: float | None = None, *, progress: Show = False) -> Any:
        """The answer of the call, waited for; see `Job.result`."""
        with showing(progress, self.label) as show:
            self._show = show
            try:
                if self._progress is not None:
                    show(*self._progress)
                return self._future.result(timeout)
            except CancelledError:
                raise self._cancelled() from None
            except TimeoutError:
                if self._future.done():
                    raise  # it was the author's
                raise not_done_yet() from None
            finally:
                self._show = None

    def cancel(self) -> None:
        """Cancel the call. A server stops the work when it notices that the caller has left."""
        self._ticket.cancel()
        self._future.cancel()  # where it has not begun: it need not wait for a thread to learn that

    async def _wait(self) -> Any:
        try:
            return await asyncio.wrap_future(self._future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._ticket.is_cancelled and not (task and task.cancelling()):
                raise self._cancelled() from None  # the job was cancelled, not the task that waits for it
            self.cancel()
            raise

    def _run(self, function: Callable[[Ticket], Any]) -> Any:
        if self._ticket.is_cancelled:
            raise self._cancelled()
        try:
            with listening(self._on_progress):
                return function(self._ticket)
        except TransportError as error:
            if self._ticket.is_cancelled:
                raise self._cancelled() from error
            raise

    def _on_progress(self, fraction: float, message: str) -> None:
        self._progress = fraction, message
        show = self._show
        if show is not None:
            show(fraction, message)


def not_done_yet() -> TimeoutError:
    """The error when the caller's timeout is over."""
    return TimeoutError("The job is not done yet; it goes on.")


@contextmanager
def showing(progress: Show, label: str) -> Iterator[Callable[[float, str], Any]]:
    """What to call with the progress of a job.

    A job that is done is shown as done, also if its author has not reported progress.
    """
    if not callable(progress):
        with job_bar(label) if progress else nullcontext() as bar:
            yield _ignore if bar is None else bar.move_to
        return
    last = (0.0, "")

    def show(fraction: float, message: str) -> None:
        nonlocal last
        last = fraction, message
        progress(fraction, message)

    yield show
    if last[0] != 1.0:
        progress(1.0, last[1])


def _ignore(fraction: float, message: str) -> None:
    """Progress is not shown."""


class Bar:
    """What a bar can be told.

    Args:
        progress: of rich.
        label: what it is about.
        total: how far there is to go; `None` while that is unknown.
        draw: called after every change.
    """

    def __init__(
        self, progress: Any, label: str, total: float | None, draw: Callable[[], object]
    ) -> None:
        self._progress = progress
        self._draw = draw
        self._task = progress.add_task(label, total=total, message="")

    def move_to(self, fraction: float, message: str) -> None:
        """Show a fraction of the whole."""
        self._progress.update(self._task, total=1.0, completed=fraction, message=visible(message))
        self._draw()

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)
        self._draw()

    def fill(self) -> None:
        """Everything is done, also if the total was unknown."""
        task = self._progress.tasks[0]
        total = task.total or task.completed or 1.0
        self._progress.update(self._task, total=total, completed=total)
        self._draw()

    def say(self, word: str) -> None:
        """Show how it ended."""
        self._progress.update(self._task, message=word)
        self._draw()


@contextmanager
def job_bar(label: str, total: float | None = None) -> Iterator[Bar]:
    """Show a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[message]}", style="dim", markup=False),
    )
    # A saved notebook keeps every step of a bar in text, so a notebook shows HTML. The widgets of rich are
    # not always installed.
    put = display_in_cell("")
    console = Console(stderr=True, force_jupyter=False)
    with Progress(*columns, console=console, disable=put is not None) as progress:
        draw = (lambda: None) if put is None else (lambda: put(_as_html(progress.tasks[0])))
        bar = Bar(progress, label, total, draw)
        try:
            yield bar
        except BaseException as error:
            bar.say(_word_for(error))
            raise
        bar.fill()


def _as_html(task: Task) -> str:
    share = task.completed / task.total if task.total else None
    return bar_html(task.description, share, task.elapsed or 0.0, task.fields["message"])


def _word_for(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "not done yet"
    if isinstance(error, (GeneratorExit, KeyboardInterrupt)):
        return "stopped"
    is_cancelled = isinstance(error, ChainruleError) and error.code == "cancelled"
    return "cancelled" if is_cancelled else "failed"

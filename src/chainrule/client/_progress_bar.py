"""A bar on the terminal for one job, or for many calls; it ends full, or with the word for what happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chainrule._errors import ChainruleError
from chainrule._visible import visible


class Bar:
    """What a bar can be told.

    Args:
        progress: of rich.
        label: what it is about.
        total: how far there is to go; `None` while nobody knows.
    """

    def __init__(self, progress: Any, label: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total, message="")

    def move_to(self, fraction: float, message: str) -> None:
        """Show a fraction of the whole."""
        self._progress.update(self._task, total=1.0, completed=fraction, message=visible(message))

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)

    def fill(self) -> None:
        """Everything is done, however much that was."""
        task = self._progress.tasks[0]
        total = task.total or task.completed or 1.0
        self._progress.update(self._task, total=total, completed=total)

    def say(self, word: str) -> None:
        """Show how it ended."""
        self._progress.update(self._task, message=word)


@contextmanager
def progress_bar(label: str, total: float | None = None) -> Iterator[Bar]:
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
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = Bar(progress, label, total)
        try:
            yield bar
        except BaseException as error:
            bar.say(_word_for(error))
            raise
        bar.fill()


def _word_for(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "not done yet"
    if isinstance(error, (GeneratorExit, KeyboardInterrupt)):
        return "stopped"
    is_cancelled = isinstance(error, ChainruleError) and error.code == "cancelled"
    return "cancelled" if is_cancelled else "failed"

"""A progress bar for work that turns out to be long.

It appears on stderr, only when stderr is a terminal, and only once the work has taken two seconds: a
component's standard output stays the result, and short work stays silent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from chainrule.runtime._progress import steps

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

PATIENCE_S = 2.0


def track(items: Iterable[T], description: str, total: int, *, show: bool = True) -> Iterator[T]:
    """Yield the items; show how far along they are when it takes long enough to wonder.

    Whoever listens to the progress of the call hears of it too, bar or no bar.
    """
    items = steps(items, total, description)
    if not (show and sys.stderr.isatty()):
        yield from items
        return
    bar: Progress | None = None
    start = time.monotonic()
    try:
        for done, item in enumerate(items, start=1):
            yield item
            if bar is None and time.monotonic() - start > PATIENCE_S:
                bar = _start_bar(description, total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(description: str, total: int) -> Progress:
    # Rich is imported only when a bar is shown: most calls never show one.
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(description, total=total)
    bar.start()
    return bar

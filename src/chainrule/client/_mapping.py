"""Many inputs through one component, a bounded number at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from chainrule.client._jobs import Job

__all__ = ["map_in_order"]


def map_in_order(
    start: Callable[[Any], Job],
    inputs: Iterable[Any],
    *,
    max_in_flight: int,
    progress: bool,
    label: str,
) -> Iterator[Any]:
    """Results in the order of the inputs; the next input is taken when there is room for it.

    When a call fails, or the caller stops asking, the calls that are still under way are given up.
    """
    in_flight: deque[Job] = deque()
    with _progress_bar(inputs, progress, label) as advance:
        try:
            for item in inputs:
                in_flight.append(start(item))
                if len(in_flight) >= max_in_flight:
                    yield in_flight.popleft().result()
                    advance()
            while in_flight:
                yield in_flight.popleft().result()
                advance()
        finally:
            for job in in_flight:
                job.cancel()


@contextmanager
def _progress_bar(inputs: Iterable[Any], shown: bool, label: str) -> Iterator[Callable[[], Any]]:
    if not shown:
        yield lambda: None
        return
    from rich.progress import Progress

    total = len(inputs) if isinstance(inputs, Sized) else None
    with Progress(transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)

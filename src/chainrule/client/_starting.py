"""Children that end with this process, and not before.

A worker asks Linux to kill it when its parent dies (`PR_SET_PDEATHSIG`), so that a busy one does not outlive
us. For Linux the parent is the *thread* that started it: a component that was opened on a thread would lose
its process as soon as that thread ends. So children of other threads are started by one that stays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def start_for_good(start: Callable[[], T]) -> T:
    """Call something that starts a process, on a thread that lives as long as this process."""
    if threading.current_thread() is threading.main_thread():
        return start()
    future: Future[T] = Future()
    _starter(os.getpid()).put((start, future))
    return future.result()


@cache
def _starter(pid: int) -> SimpleQueue[Any]:
    """What the thread is told; a forked process has one of its own."""
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_run, args=(tasks,), name="chainrule-starter", daemon=True).start()
    return tasks


def _run(tasks: SimpleQueue[Any]) -> None:
    while True:
        start, future = tasks.get()
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)
        del start, future  # what they refer to must not wait for the next task

"""A thread of the server that loads and runs author code, one task after the other."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from chainrule.serve._answering import Answerer

_log = logging.getLogger(__name__)

Task = Callable[[], None]


class WorkerThread:
    """One thread that runs tasks of the server.

    The component is loaded on it too: what an author makes may belong to the thread that made it. Nobody
    waits for the thread at the end of the process, whatever the author's code is doing.

    Args:
        load: loads the component.
    """

    def __init__(self, load: Callable[[], Answerer]) -> None:
        self._load = load
        self._loading: Future[Answerer] = Future()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="chainrule-component", daemon=True).start()

    async def loaded(self) -> Answerer:
        """What answers calls, when the component is loaded.

        Raises:
            BaseException: whatever the component's code raised.
        """
        return await asyncio.wrap_future(self._loading)

    @property
    def backlog(self) -> int:
        """How many tasks have not begun."""
        return self._tasks.qsize()

    def submit(self, task: Task | None) -> None:
        """Run something on the thread; `None` ends it when all before is done."""
        self._tasks.put(task)

    def _run(self) -> None:
        self._loading.set_running_or_notify_cancel()
        try:
            self._loading.set_result(self._load())
        except BaseException as error:
            self._loading.set_exception(error)
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException:  # without this thread nobody would ever be answered again
                _log.exception("a call was lost")
            del task  # it holds a request and its reply

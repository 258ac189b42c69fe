"""A thread of the server as a worker: `workers=0`. Fast and simple; it cannot be stopped.

Author code runs on one thread of this process. The component is loaded on it too: what an author makes may
belong to the thread that made it. The thread is a daemon: the end of the process does not wait for it, or
for the author's code that it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from chainrule.serve._answering import Answerer
from chainrule.serve._author_code import following_in_thread
from chainrule.serve._calls import Call, CallError, Facts, Reply, too_slow
from chainrule.serve._problems import problem_reply

_log = logging.getLogger(__name__)


class WorkerThread:
    """One thread that answers calls. At most one call at a time.

    A call that takes too long is answered with 504, but the thread goes on: until it is back, `is_usable` is
    false.

    Args:
        source: what `load_component` takes.
        config: the component's settings.
        on_change: called on the event loop when the thread is back from a call that is not waited for any
            more.
    """

    is_alive = True

    def __init__(self, source: Any, config: Any, on_change: Callable[[WorkerThread], None]) -> None:
        self._source, self._config = source, config
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answer: asyncio.Future[Reply] | None = None
        self.is_usable = True

    @property
    def pid(self) -> int:
        """Of the server itself."""
        return os.getpid()

    async def start(self) -> Facts:
        """Start the thread, which loads the component.

        Raises:
            BaseException: what the component's code raised.
        """
        loading: asyncio.Future[Answerer] = self._loop.create_future()
        threading.Thread(
            target=self._run, args=(loading,), name="chainrule-component", daemon=True
        ).start()
        self._answerer = await loading
        return self._answerer.facts

    async def call(self, call: Call, *, timeout_s: float | None) -> Reply:
        """Have a call answered.

        Raises:
            CallError: it took too long (`call_timeout`); the thread goes on.
        """
        self.is_usable = False
        self._answer = answer = self._loop.create_future()
        self._calls.put(partial(self._reply_to, call, answer))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=False) from None

    def kill(self) -> None:
        """Let the call under way fail, and the thread end when it is back."""
        self.is_usable = False
        self._calls.put(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                CallError("The worker was stopped.", code="worker_crashed", status=502)
            )

    async def close(self) -> None:
        """Do not wait for the thread: it ends with this process."""
        self.kill()

    # On the thread

    def _run(self, loading: asyncio.Future[Answerer]) -> None:
        try:
            answerer = Answerer.load(self._source, self._config)
        except BaseException as error:
            self._on_loop(_fail, loading, error)
            return
        self._on_loop(_settle, loading, answerer)
        while (task := self._calls.get()) is not None:
            task()
            del task  # it holds a request and its reply

    def _reply_to(self, call: Call, answer: asyncio.Future[Reply]) -> None:
        try:
            reply = self._reply(call)
        except BaseException:  # without this thread no call would ever be answered again
            _log.exception("A call was lost")
            error = CallError(
                "The server failed on this request.", code="internal_error", status=500
            )
            reply = problem_reply(error)
        self._on_loop(self._finish, answer, reply)

    def _reply(self, call: Call) -> Reply:
        if call.watcher is None:
            return self._answerer.answer(call)
        with following_in_thread(call.watcher, self._loop):
            return self._answerer.answer(call)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    # On the event loop

    def _finish(self, answer: asyncio.Future[Reply], reply: Reply) -> None:
        """The thread is back.

        The race of reply and cancellation is decided here, on the event loop, by `answer`: either it is
        still open, and the pool releases this worker after it has the reply; or the caller has left, the
        pool found the worker not usable then, and is told now that it is.
        """
        self.is_usable = True
        if answer.done():
            self._on_change(self)
        else:
            answer.set_result(reply)


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

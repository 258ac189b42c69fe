"""`workers=0`: author code on one thread of the server. Fast and simple; it cannot be killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from chainrule._errors import ChainruleError
from chainrule.runtime.internal import load_component
from chainrule.serve._answering import Answerer
from chainrule.serve._author_code import following_in_thread, only_here, prepare
from chainrule.serve._calls import Call, Facts, Reply, not_loaded, stopping, too_slow, unavailable
from chainrule.serve._metrics import Traffic
from chainrule.serve._pool import Counters, WorkerState
from chainrule.serve._problems import problem_reply


class ThreadPool:
    """One thread of this process that answers one call after the other.

    A call that takes too long is given up on (504), but its thread goes on: calls behind it wait.

    Args:
        source: what `load_component` takes.
        config: the component's settings.
        timeout_s: how long a caller waits; `None` for ever.
        startup_timeout_s: how long loading the component may take.
        max_queue: how many calls may wait.
    """

    uses_segments = False

    def __init__(
        self,
        source: Any,
        config: Any,
        *,
        timeout_s: float | None,
        startup_timeout_s: float,
        max_queue: int,
    ) -> None:
        self._source, self._config = source, config
        self._startup_timeout_s = startup_timeout_s
        self._timeout_s = timeout_s
        self.max_queue = max_queue
        self._pending: set[asyncio.Future[Reply]] = set()
        self._stopping = False
        self.counters = Counters()
        self.traffic = Traffic()
        self._worker: Any = None

    async def start(self) -> Facts:
        """Start the thread, which loads the component.

        Raises:
            CallError: that takes too long (`startup_timeout`).
        """
        self._loop = asyncio.get_running_loop()
        self._worker = WorkerThread(self._load)
        try:
            self._answerer = await asyncio.wait_for(self._worker.loaded(), self._startup_timeout_s)
        except TimeoutError:
            raise not_loaded(self._startup_timeout_s) from None
        return self._answerer.facts

    def _load(self) -> Answerer:
        component = only_here(lambda: load_component(self._source, config=self._config))
        prepare(component)
        return Answerer(component)

    def _run(self, call: Call, future: asyncio.Future[Reply]) -> None:
        if future.cancelled():
            return
        try:
            reply = self._reply(call)
        except ChainruleError as error:  # a job cannot be noted as running
            reply = problem_reply(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_resolve, future, reply)

    def _reply(self, call: Call) -> Reply:
        if call.watcher is None:
            return self._answerer.answer(call)
        asyncio.run_coroutine_threadsafe(call.watcher.on_start(), self._loop).result()
        with following_in_thread(call.watcher, self._loop):
            return self._answerer.answer(call)

    @property
    def queue_length(self) -> int:
        """How many calls wait."""
        return max(0, len(self._pending) - 1)

    @property
    def is_ready(self) -> bool:
        """Whether calls can be expected to be answered."""
        return not self._stopping

    @property
    def alive(self) -> int:
        """How many workers are up."""
        return 1

    @property
    def size(self) -> int:
        """How many calls can be under way."""
        return 1

    @property
    def workers(self) -> list[WorkerState]:
        """What the thread does."""
        return [WorkerState(0, os.getpid(), "busy" if self._pending else "idle", 0)]

    async def call(self, call: Call) -> Reply:
        """Have a call answered by the thread.

        Raises:
            CallError: no room, stopping, or no answer in time.
        """
        return await self.traffic.counted(call, self._answer(call))

    async def _answer(self, call: Call) -> Reply:
        if self._stopping:
            raise stopping()
        # Calls that were given up on still stand in the thread's queue, and hold their bodies.
        if max(len(self._pending), self._worker.backlog) > self.max_queue:
            self.counters.turned_away += 1
            raise unavailable(f"{self.max_queue} calls wait already.", "queue_full")
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.counters.running += not self._pending
        self._pending.add(future)
        self._worker.submit(partial(self._run, call, future))
        timeout_s = call.timeout_s(self._timeout_s)
        try:
            reply = await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.counters.timed_out += 1
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=False) from None
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        finally:
            self._pending.discard(future)
            self.counters.running -= not self._pending
        self.counters.answered += 1
        return reply

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, and wait until those under way are answered."""
        self._stopping = True
        deadline = time.monotonic() + grace_s
        while self._pending and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Let the thread end; calls that are under way fail."""
        self._stopping = True
        for future in list(self._pending):
            if not future.done():
                future.set_exception(stopping())
        if self._worker is not None:
            self._worker.submit(None)


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


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

"""`workers=0`: author code on one thread of the server. Fast and simple; it cannot be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from functools import partial
from typing import Any

from chainrule.runtime._component import load_component
from chainrule.serve._answering import Answerer
from chainrule.serve._calls import Call, Facts, Reply, not_loaded, stopping, too_slow, unavailable
from chainrule.serve._express import MOMENT_S
from chainrule.serve._following import following_in_thread
from chainrule.serve._pool import Counters, WorkerState
from chainrule.serve._preparing import prepare
from chainrule.serve._thread import WorkerThread
from chainrule.serve._traffic import Traffic

__all__ = ["ThreadPool"]


class _Begun:
    """A call that the thread has been given. The event loop waits for it, or leaves a future."""

    __slots__ = ("_over", "at", "call", "future", "reply")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.at = time.perf_counter()
        self.reply: Reply | None = None
        self.future: asyncio.Future[Reply] | None = None
        self._over = threading.Lock()
        self._over.acquire()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits."""
        return self.future is None or not self.future.cancelled()

    def wait(self, seconds: float) -> Reply | None:
        """The reply, if it comes in time."""
        self._over.acquire(timeout=seconds)
        return self.reply

    def expect(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Reply]:
        """A future of the reply."""
        # The thread sets the reply, then looks for a future: one of the two sees what the other has done.
        self.future = loop.create_future()
        if self.reply is not None:
            self.future.set_result(self.reply)
        return self.future

    def resolve(self, reply: Reply, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the thread."""
        self.reply = reply
        self._over.release()
        if self.future is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, self.future, reply)


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
        self._pending: set[_Begun] = set()
        self._is_quick = False
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
        component = load_component(self._source, config=self._config)
        prepare(component)
        return Answerer(component)

    def _run(self, begun: _Begun) -> None:
        if begun.is_wanted:
            start = time.perf_counter()
            reply = self._reply(begun.call)
            self._is_quick = time.perf_counter() - start < MOMENT_S
            begun.resolve(reply, self._loop)

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
        return await self._finish(self._submit(call))

    def _submit(self, call: Call) -> _Begun:
        begun = _Begun(call)
        self.counters.running += not self._pending
        self._pending.add(begun)
        self._worker.submit(partial(self._run, begun))
        return begun

    async def _finish(self, begun: _Begun) -> Reply:
        call = begun.call
        timeout_s = call.timeout_s(self._timeout_s)
        future = begun.expect(self._loop)
        try:
            if timeout_s is None:
                reply = await future
            else:
                reply = await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.counters.timed_out += 1
            assert timeout_s is not None
            raise too_slow(call.endpoint, timeout_s, was_stopped=False) from None
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        finally:
            self._leave(begun)
        self.counters.answered += 1
        return reply

    def _leave(self, begun: _Begun) -> None:
        self._pending.discard(begun)
        self.counters.running -= not self._pending

    def begin(self, call: Call) -> _Begun | None:
        """Give the thread a call if it is free, and was quick the last time."""
        is_free = not self._pending and not self._stopping
        return self._submit(call) if is_free and self._is_quick else None

    def wait(self, begun: _Begun) -> Reply | None:
        """The reply, if it comes within a moment."""
        reply = begun.wait(MOMENT_S)
        if reply is not None:
            self._leave(begun)
            self.counters.answered += 1
            self.traffic.record(begun.call, reply.status, time.perf_counter() - begun.at, reply)
        return reply

    async def finish(self, begun: _Begun) -> Reply:
        """The reply of a call that took longer."""
        return await self.traffic.counted(begun.call, self._finish(begun))

    def forget_segment(self, key: str) -> None:
        """Nothing to do: no segments here."""

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, and wait until those under way are answered."""
        self._stopping = True
        deadline = time.monotonic() + grace_s
        while self._pending and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Let the thread end; calls that are under way fail."""
        self._stopping = True
        for begun in list(self._pending):
            if begun.future is not None and not begun.future.done():
                begun.future.set_exception(stopping())
        if self._worker is not None:
            self._worker.submit(None)


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)

"""Concurrent single calls of a component that batches, merged into one call of its `apply`.

While a worker is free, a call waits for others for at most the delay; while all are busy, calls gather
until one is free, which costs nobody anything. At most `max_size` go into one. What belongs together, and
what to do with a caller whose input does not fit, is decided where inputs are read: in the worker, by
`_merged`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chainrule._errors import ChainruleError
from chainrule.serve._bodies import place_body
from chainrule.serve._calls import Call, CallError, Reply
from chainrule.serve._parts import pack_calls, unpack_replies
from chainrule.serve._pool import Pool

Waiting = tuple[Call, asyncio.Future[Reply]]


class Merger:
    """Merges calls of `apply`; everything else goes straight to the pool.

    Args:
        pool: answers.
        max_size: how many calls are merged at most.
        delay_s: how long a call waits for others while a worker is free.
    """

    def __init__(self, pool: Pool, *, max_size: int, delay_s: float) -> None:
        self._pool = pool
        self._max_size = max_size
        self._delay_s = delay_s
        self._waiting: list[Waiting] = []
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, call: Call) -> Reply:
        """Have a call answered, alone or together with others.

        Raises:
            CallError: as by the pool behind.
        """
        if not _can_be_merged(call):
            return await self._pool.call(call)
        if len(self._waiting) >= self._max_size + self._pool.max_queue:
            return await self._pool.call(call)  # which knows how to turn callers away
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        self._look()
        return await self._pool.traffic.counted(call, future)

    def _look(self) -> None:
        """Send what is due, or see to it that somebody looks again."""
        if self._under_way >= self._pool.size:
            return
        if len(self._waiting) >= self._max_size:
            self._send()
        elif self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        chosen, self._waiting = self._waiting[: self._max_size], self._waiting[self._max_size :]
        chosen = [entry for entry in chosen if not entry[1].done()]
        if not chosen:
            return
        self._under_way += 1
        task = asyncio.get_running_loop().create_task(self._answer(chosen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, entries: list[Waiting]) -> None:
        try:
            if len(entries) == 1:
                await self._answer_alone(entries[0])
            else:
                await self._answer_together(entries)
        finally:
            self._under_way -= 1
            if self._waiting:
                self._send()

    async def _answer_together(self, entries: list[Waiting]) -> None:
        calls = [call for call, _ in entries]
        merged = self._merged(calls)
        try:
            reply = await self._pool.call(merged)
            replies = unpack_replies(b"".join(reply.open()))
        except CallError as error:
            if error.code != "worker_crashed":
                _settle_all(entries, error)
                return
            # One of them took the worker down. Alone, only that one does.
            for entry in entries:
                await self._answer_alone(entry)
            return
        for (_, future), one in zip(entries, replies, strict=True):
            _settle(future, one)

    def _merged(self, calls: Sequence[Call]) -> Call:
        body = pack_calls(calls)
        placed = place_body(body) if self._pool.uses_segments else body
        return Call(calls[0].endpoint, placed, merged=True)

    async def _answer_alone(self, entry: Waiting) -> None:
        call, future = entry
        if future.done():
            return
        try:
            reply = await self._pool.call(self._merged([call]))
        except ChainruleError as error:
            _settle_all([entry], error)
        else:
            _settle(future, unpack_replies(b"".join(reply.open()))[0])


def _can_be_merged(call: Call) -> bool:
    """Small calls of `apply` that have no run of their own."""
    return (
        call.endpoint == "apply"
        and isinstance(call.body, bytes)
        and call.watcher is None
        and call.run_id is None
        and "binref" not in (call.accept or "")
    )


def _settle(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _settle_all(entries: list[Waiting], error: ChainruleError) -> None:
    for _, future in entries:
        if not future.done():
            future.set_exception(error)

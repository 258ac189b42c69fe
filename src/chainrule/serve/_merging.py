"""Concurrent single calls of a component that batches, merged into one call of its `apply`.

`Merger` collects calls in the server. While a worker is free, a call waits for others for at most the delay;
while all are busy, calls gather until one is free, which delays no call. At most `max_size` go into one
message.

`MergedCalls` answers such a message in the worker, where inputs are read. A component says how it batches.
`elementwise`: any extra leading axis may be added to all arrays, so inputs of equal shapes are stacked.
`leading`: the first axis of every array is a batch of independent cases, so inputs that agree in everything
but that axis are joined along it. Everything that is not an array has to be equal.

Every caller gets its own answer: inputs that are refused are refused alone, and when a merged call fails,
each of its calls is answered alone.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from chainrule._content_store import content_name
from chainrule._errors import ChainruleError, InputError
from chainrule._trees import flatten_with_paths, set_at_path
from chainrule.runtime import LocalComponent
from chainrule.serve._calls import Call, Reply
from chainrule.serve._umbridge import EVALUATE

if TYPE_CHECKING:
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
        # Calls that gather here are not in the queue of the pool, so its bound does not see them. This is the
        # same bound, plus the message that is being gathered.
        if len(self._waiting) >= self._max_size + self._pool.max_queue:
            return await self._pool.call(call)  # which knows how to turn callers away
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        self._look()
        return await self._pool.metrics.counted(call, future, is_call=False, is_request=True)

    def _look(self) -> None:
        """Send what is due, or set a timer for what is not."""
        # With as many messages under way as there are workers, one more could only wait in the pool's queue,
        # where nothing can join it any more. `_answer` sends what has gathered when a worker is free.
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
        # Calls whose callers have left are dropped before some are chosen: were all of those chosen to have
        # left, nothing would be sent, and the calls behind them would wait until another one comes.
        waiting = [entry for entry in self._waiting if not entry[1].done()]
        chosen, self._waiting = waiting[: self._max_size], waiting[self._max_size :]
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
        try:
            reply = await self._pool.call(self._merged([call for call, _ in entries]))
            replies = unpack_replies(b"".join(reply.open()))
        except ChainruleError as error:
            if error.code != "worker_crashed":
                _settle_all(entries, error)
                return
            # One after the other, not at the same time: each crash costs a worker, and the pool has to have
            # one again before the next call of this message is tried.
            # One of them took the worker down. Alone, only that one does.
            for entry in entries:
                await self._answer_alone(entry)
            return
        for (_, future), one in zip(entries, replies, strict=True):
            _settle(future, one)

    def _merged(self, calls: Sequence[Call]) -> Call:
        return Call("apply", self._pool.placed(pack_calls(calls)), merged=True)

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
    """Small calls of `apply`, in either protocol, that have no run of their own."""
    return (
        call.endpoint in ("apply", EVALUATE)
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


@dataclass(frozen=True)
class _Part:
    """One caller's input, read and validated."""

    index: int
    tree: Any
    arrays: dict[str, np.ndarray]
    key: Any


class MergedCalls:
    """Answers several calls of `apply` with as few calls of the component as possible.

    Args:
        component: of the calls.
        decode: the payload of a call, given the call and how many calls are in memory together.
        encode: the reply to a call, from its result.
        answer: answers one call alone; an error becomes a reply.
    """

    def __init__(
        self,
        component: LocalComponent,
        *,
        decode: Callable[[Call, int], Any],
        encode: Callable[[Call, Any], Reply],
        answer: Callable[[Call], Reply],
    ) -> None:
        self._component = component
        self._decode, self._encode, self._answer = decode, encode, answer
        # Shapes that the component's own schema or outputs do not allow to merge; asked for once.
        self._hopeless: set[Any] = set()

    def answer(self, calls: Sequence[Call]) -> list[Reply]:
        """One reply for each call, in their order."""
        replies: dict[int, Reply] = {}
        for parts in self._groups(calls) if len(calls) > 1 else ():
            results = self._together(parts) or []
            for part, result in zip(parts, results, strict=bool(results)):
                replies[part.index] = self._encode(calls[part.index], result)
        return [replies.get(i) or self._answer(call) for i, call in enumerate(calls)]

    def _groups(self, calls: Sequence[Call]) -> list[list[_Part]]:
        """The inputs that fit together; what is refused, or cannot be compared, is in no group."""
        groups: dict[Any, list[_Part]] = {}
        for index, call in enumerate(calls):
            try:
                part = _read(self._component, index, self._decode(call, len(calls)))
            except ChainruleError:
                continue
            if part is not None and part.key not in self._hopeless:
                groups.setdefault(part.key, []).append(part)
        return [parts for parts in groups.values() if len(parts) > 1]

    def _together(self, parts: Sequence[_Part]) -> list[Any] | None:
        """The result of each part from one call, or `None` when that is not possible."""
        # The product of a batch is the batch of the products: for `elementwise`, f(stack(x_i)) =
        # stack(f(x_i)); for `leading`, f(concat(x_i)) = concat(f(x_i)) along axis 0. The author promises one
        # of them; `_split` inverts the same join, and refuses outputs whose first axis is not the sum of the
        # lengths.
        is_leading = self._component.batching == "leading"
        join = np.concatenate if is_leading else np.stack
        merged = {path: join([part.arrays[path] for part in parts]) for path in parts[0].arrays}
        lengths = [len(next(iter(part.arrays.values()))) if is_leading else 1 for part in parts]
        try:
            inputs = set_at_path(parts[0].tree, merged)
            outputs = self._component.call("apply", {"inputs": inputs})
        except InputError:
            self._hopeless.add(parts[0].key)
            return None
        except ChainruleError:
            return None
        results = _split(outputs, lengths, is_leading=is_leading)
        if results is None:
            self._hopeless.add(parts[0].key)
        return results


def _split(outputs: Any, lengths: Sequence[int], *, is_leading: bool) -> list[Any] | None:
    leaves = flatten_with_paths(outputs)
    total = sum(lengths)
    if not all(isinstance(a, np.ndarray) and a.shape[:1] == (total,) for a in leaves.values()):
        return None
    results = []
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        # `end` is the cumulative sum of the lengths, so case i is [end_i - length_i, end_i). With
        # `elementwise` each length is 1, and an index instead of a slice takes the added axis away again.
        chosen = slice(end - length, end) if is_leading else end - 1
        results.append(set_at_path(outputs, {path: a[chosen] for path, a in leaves.items()}))
    return results


def _read(component: LocalComponent, index: int, payload: Any) -> _Part | None:
    """A caller's input, validated; `None` when nothing can be merged with it."""
    tree = component.read_inputs(payload)
    leaves = flatten_with_paths(tree)
    arrays = {p: np.asarray(a) for p, a in leaves.items() if isinstance(a, np.ndarray | np.generic)}
    # What is not an array has one value for the whole merged call, so it is part of the key, by content.
    rest = content_name({p: leaf for p, leaf in leaves.items() if p not in arrays})
    if not arrays or rest is None:
        return None
    shapes = [array.shape for array in arrays.values()]
    if component.batching == "leading":
        if not all(shapes) or len({shape[0] for shape in shapes}) != 1:
            return None
        shapes = [shape[1:] for shape in shapes]
    elif len({len(shape) for shape in shapes}) != 1:
        return None  # broadcasting aligns from the right: the new axis would meet the wrong ones
    dtypes = [array.dtype.str for array in arrays.values()]
    return _Part(index, tree, arrays, (rest, tuple(arrays), tuple(shapes), tuple(dtypes)))


_LENGTH = struct.Struct("<I")


def pack_calls(calls: Sequence[Call]) -> bytes:
    """The bodies of some calls, and their headers."""
    heads = [
        [call.endpoint, call.content_type, call.content_encoding, call.accept, len(call.body)]
        for call in calls
    ]
    return _pack(heads, [call.body for call in calls])


def unpack_calls(body: Any) -> list[Call]:
    """The calls that were packed."""
    return [
        Call(endpoint, part, content_type=kind, content_encoding=encoding, accept=accept)
        for (endpoint, kind, encoding, accept, _), part in _unpack(body)
    ]


def pack_replies(replies: Sequence[Reply]) -> list[Any]:
    """The bodies of some replies, and their headers, as pieces."""
    heads = [[reply.status, reply.content_type, reply.nbytes] for reply in replies]
    return [_pack(heads, []), *(piece for reply in replies for piece in reply.pieces)]


def unpack_replies(body: Any) -> list[Reply]:
    """The replies that were packed."""
    return [Reply(status, kind, [part]) for (status, kind, _), part in _unpack(body)]


def _pack(heads: list[Any], bodies: list[Any]) -> bytes:
    text = orjson.dumps(heads)
    return b"".join([_LENGTH.pack(len(text)), text, *bodies])


def _unpack(body: Any) -> list[tuple[Any, Any]]:
    view = memoryview(body).cast("B")
    (length,) = _LENGTH.unpack_from(view)
    position = _LENGTH.size + length
    found = []
    for head in orjson.loads(view[_LENGTH.size : position]):
        found.append((head, view[position : position + head[-1]]))
        position += head[-1]
    return found

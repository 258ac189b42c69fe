"""What answers the calls of one component: a bounded queue in front, workers behind.

`Pool` is what the rest of the server knows: it counts calls, and has a queue, workers and an orderly end.
`WorkerPool` is the pool of a server's own workers: supervised processes, or one thread of the server. Both
kinds of worker have the same interface (`Worker`), so a call takes the same way to either. Another package
may offer another pool (`chainrule.deploy.ray.engine`).

Why not a library: `ProcessPoolExecutor` breaks for good when one process dies, `pebble` and `loky` replace
processes but pickle every argument and result, and none of them lets the server cancel one call and keep
the process warm. What is left after taking that away is this file.

Everything here runs on the event loop, so there are no locks: between two `await`s nothing else changes the
queue, the set of workers or what is counted (`Metrics`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from chainrule._errors import ChainruleError, DefinitionError
from chainrule._lru_cache import LRUCache
from chainrule._same_host import SegmentPool, is_supported
from chainrule.serve._calls import (
    Call,
    CallError,
    Facts,
    Reply,
    SegmentBody,
    not_loaded,
    place_body,
    too_slow,
)
from chainrule.serve._logs import ErrorStream, Output
from chainrule.serve._worker_handles import Worker, WorkerProcess, WorkerThread

if TYPE_CHECKING:
    from chainrule.serve._merging import Merger

_log = logging.getLogger(__name__)

# A worker that fails again and again is started again after a time that doubles with each failure.
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 10.0
# A pool whose workers failed this often in a row turns callers away instead of letting them wait.
_FAILURES_UNTIL_UNAVAILABLE = 3
# Forward passes whose worker is remembered; for one that is forgotten, the inputs are sent again.
_REMEMBERED = 4096


class WorkerState(NamedTuple):
    """One worker, for `/status`.

    Attributes:
        id: of its place; a replacement has the same.
        pid: of its process; `None` while there is none.
        state: `idle`, `busy` or `starting`.
        restarts: how often it was replaced.
        device_bytes: memory of a GPU that it had after its last call; `None` for a component of the host.
    """

    id: int
    pid: int | None
    state: str
    restarts: int
    device_bytes: int | None = None


BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
    600.0,
)
"""Upper bounds of the latency histogram; one more bucket holds what takes longer."""

# The last calls of each endpoint, from which times and rates are computed.
_RECENT = 1024
# The status of a call whose caller left, as nginx counts it.
_CANCELLED = 499
OUTCOMES = ("answered", "crashed", "timed_out", "cancelled", "turned_away")
_OUTCOME_OF_CODE = {
    "call_timeout": "timed_out",
    "queue_full": "turned_away",
    "replica_lost": "crashed",
    "worker_crashed": "crashed",
}


class EndpointMetrics:
    """What passed through one endpoint. Plain numbers: every request adds to all of them.

    Attributes:
        statuses: HTTP status → how many.
        buckets: how many took up to each of `BOUNDS_S`, and longer.
        seconds: altogether.
        received, sent: bytes of bodies.
    """

    __slots__ = ("buckets", "received", "seconds", "sent", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0
        self.received = 0
        self.sent = 0


class Metrics:
    """What is counted of one component. Calls are counted by their outcome, requests by their endpoint.

    A call is what a worker is given. It is one request, or several that were merged.

    Attributes:
        outcomes: what became of calls → how many.
        endpoints: name → what passed through.
        reuse: what was kept from earlier calls, and whether it was there (`results_hit`, …) → how often.
        recent: when the last requests ended (`time.perf_counter`), and how long they took.
        under_way: how many calls wait or run.
    """

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.endpoints: dict[str, EndpointMetrics] = {}
        self.reuse: Counter[str] = Counter()
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self.under_way = 0

    async def counted(
        self, call: Call, answer: Awaitable[Reply], *, is_call: bool, is_request: bool
    ) -> Reply:
        """Wait for an answer, and count it, also where it is an error.

        Args:
            call: what is answered.
            answer: the answer to come.
            is_call: a worker was asked: count what became of that.
            is_request: a caller asked: count it for its endpoint.
        """
        start = time.perf_counter()
        # A caller who leaves raises CancelledError here, which is no ChainruleError: the first values are its
        # outcome, and the `finally` below counts it without a branch of its own.
        outcome: str | None = "cancelled"
        status, sent = _CANCELLED, 0
        # Counted before the first `await`, so that `drain` sees a call in the same step of the event loop in
        # which the endpoint takes it: a server that stops waits for every call that was not refused.
        self.under_way += is_call
        try:
            reply = await answer
            outcome, status, sent = "answered", reply.status, reply.nbytes
            if is_call and reply.reuse:
                self.reuse.update(reply.reuse)
            return reply
        except ChainruleError as error:
            outcome, status = _OUTCOME_OF_CODE.get(error.code), error.http_status
            raise
        finally:
            self.under_way -= is_call
            if is_call and outcome is not None:
                self.outcomes[outcome] += 1
            if is_request:
                self._add(call, status, start, sent)

    def refuse(self, endpoint: str, status: int) -> EndpointMetrics:
        """Count a request that was turned away before it reached a pool; it took no time."""
        entry = self.endpoints.get(endpoint)
        if entry is None:
            entry = self.endpoints[endpoint] = EndpointMetrics()
        entry.statuses[status] = entry.statuses.get(status, 0) + 1
        return entry

    def _add(self, call: Call, status: int, start: float, sent: int) -> None:
        end = time.perf_counter()
        seconds = end - start
        entry = self.refuse(call.endpoint, status)
        entry.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        entry.seconds += seconds
        entry.received += call.nbytes
        entry.sent += sent
        self.recent.append((end, seconds))

    @property
    def total(self) -> int:
        """How many requests there were."""
        return sum(sum(entry.statuses.values()) for entry in self.endpoints.values())

    @property
    def errors(self) -> int:
        """How many of them did not succeed."""
        return sum(
            count
            for entry in self.endpoints.values()
            for status, count in entry.statuses.items()
            if status >= 400
        )


class Pool(ABC):
    """What answers calls: worker processes, a thread, or the replicas of a cluster.

    Args:
        max_queue: how many calls may wait.

    Attributes:
        memory: where large bodies are handed over in shared memory, if they are.
        max_queue: how many calls may wait.
        metrics: what is counted.
        is_stopping: whether no new calls are taken.
    """

    memory: SegmentPool | None = None

    def __init__(self, *, max_queue: int) -> None:
        self.max_queue = max_queue
        self.metrics = Metrics()
        self.is_stopping = False

    @abstractmethod
    async def start(self) -> Facts:
        """Load the component.

        Raises:
            ChainruleError: it cannot be loaded.
        """

    @abstractmethod
    async def answer(self, call: Call) -> Reply:
        """Have a call answered, once there is room for it; `call` counts it.

        Raises:
            CallError: no room, stopping, or no answer in time.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End all workers; calls that are under way fail."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many calls can run at a time."""

    @property
    @abstractmethod
    def queue_length(self) -> int:
        """How many calls wait."""

    @property
    @abstractmethod
    def workers(self) -> list[WorkerState]:
        """What the workers do."""

    @property
    def alive(self) -> int:
        """How many workers are up."""
        return sum(worker.state != "starting" for worker in self.workers)

    @property
    def is_ready(self) -> bool:
        """Whether calls can be expected to be answered."""
        return not self.is_stopping and self.alive > 0

    def placed(self, body: bytes) -> bytes | SegmentBody:
        """A body where a worker can read it.

        Raises:
            StorageError: there is no memory for it.
        """
        return body if self.memory is None else place_body(body, self.memory)

    @property
    def under_way(self) -> int:
        """How many calls wait or run."""
        return self.metrics.under_way

    def call(self, call: Call) -> Awaitable[Reply]:
        """Have a call answered, and count it.

        Raises:
            CallError: no room, stopping, or the worker died or hung.
        """
        # The calls in a merged one are requests, each of which its merger counts.
        return self.metrics.counted(
            call, self.answer(call), is_call=True, is_request=not call.merged
        )

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, and wait until those under way are answered."""
        self.is_stopping = True
        # Looked at every 20 ms instead of woken by an event: this happens once in the life of a server, and
        # an event would have to be set on the way of every call.
        deadline = time.monotonic() + grace_s
        while self.under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


@dataclass
class Service:
    """A component behind its pool.

    Attributes:
        name: of the component in URLs.
        pool: what answers.
        facts: known once the pool has started.
        merger: makes one call of several where author or operator want that.
    """

    name: str
    pool: Pool
    facts: Facts
    merger: Merger | None = None

    def call(self, call: Call) -> Awaitable[Reply]:
        """Have a call answered, alone or together with others.

        Raises:
            CallError: as by the pool.
        """
        return (self.pool if self.merger is None else self.merger).call(call)


class WorkerPool(Pool):
    """Workers of one component on this machine, replaced when they end.

    Args:
        source: what `load_component` takes; pickled for processes.
        config: the component's settings.
        workers: how many processes; 0 for one thread of this process.
        timeout_s: how long one call may run; `None` for no limit. A process is then replaced. A thread cannot
            be stopped: its caller gets 504, and calls behind it wait, at most as long each.
        max_queue: how many calls may wait for a free worker.
        startup_timeout_s: how long loading the component may take.
        output: where the output of processes goes; the server's error stream by default.
        memory: shared memory for the bodies of processes; the pool has its own by default.
    """

    def __init__(
        self,
        source: Any,
        config: Any,
        *,
        workers: int,
        timeout_s: float | None,
        max_queue: int,
        startup_timeout_s: float,
        output: Output | None = None,
        memory: SegmentPool | None = None,
    ) -> None:
        super().__init__(max_queue=max_queue)
        if workers > 0 and not is_supported():
            raise DefinitionError(
                "Worker processes need Linux; use workers=0 here.", code="not_supported"
            )
        if workers > 0:
            self.memory = memory or SegmentPool()
        self._source, self._config = source, config
        self._size = max(1, workers)
        self._timeout_s = timeout_s
        self._startup_timeout_s = startup_timeout_s
        self._output = output or ErrorStream()
        self._workers: set[Worker] = set()
        self._idle: deque[Worker] = deque()
        # Which worker has kept a forward pass, by its token.
        self._keepers: LRUCache[str, Worker] = LRUCache(_REMEMBERED)
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures_in_a_row = 0
        self._places: dict[int, Worker | None] = dict.fromkeys(range(self._size))
        self._restarts = [0] * self._size
        self._device_bytes: dict[int, int] = {}

    async def start(self) -> Facts:
        """Start all workers.

        Raises:
            ChainruleError: the component cannot be loaded.
        """
        # The first one alone: what cannot be loaded fails once, not once per worker.
        facts = await self._start_one(0)
        await asyncio.gather(*(self._start_one(place) for place in range(1, self._size)))
        return facts

    @property
    def queue_length(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    @property
    def is_ready(self) -> bool:
        """Whether calls can be expected to be answered."""
        return not self.is_stopping and self._failures_in_a_row < _FAILURES_UNTIL_UNAVAILABLE

    @property
    def size(self) -> int:
        """How many calls can run at a time."""
        return self._size

    @property
    def workers(self) -> list[WorkerState]:
        """What the workers do."""
        return [self._state(place, worker) for place, worker in self._places.items()]

    def _state(self, place: int, worker: Worker | None) -> WorkerState:
        restarts = self._restarts[place]
        # A worker that has ended stays in its place until its replacement is made (`_start_one`), so that a
        # reply which arrived in the same step as the end can still look up its place (`_place_of`).
        if worker is None or worker not in self._workers:
            return WorkerState(place, None, "starting", restarts)
        state = "idle" if worker in self._idle else "busy"
        return WorkerState(place, worker.pid, state, restarts, self._device_bytes.get(place))

    async def answer(self, call: Call) -> Reply:
        """Have a call answered by the next free worker.

        Raises:
            CallError: no room, stopping, or the worker died or hung.
        """
        timeout_s = call.timeout_s(self._timeout_s)
        worker = await self._acquire(call, timeout_s)
        try:
            if call.watcher is not None:
                await call.watcher.on_start()
            reply = await worker.call(call, timeout_s=timeout_s)
            self._failures_in_a_row = 0
            if reply.forward_pass is not None:
                self._keepers.put(reply.forward_pass, worker)
            if reply.device_bytes is not None:
                self._device_bytes[self._place_of(worker)] = reply.device_bytes
            return reply
        except CallError as error:
            if self.is_stopping:
                raise CallError.stopping() from error
            # A call that was too slow says nothing about whether the component can be started: its worker is
            # replaced at once. Only crashes count towards the pause between restarts and towards `is_ready`.
            self._failures_in_a_row += error.code != "call_timeout"
            raise
        finally:
            self._release(worker)

    async def _acquire(self, call: Call, timeout_s: float | None) -> Worker:
        if self.is_stopping:
            raise CallError.stopping()
        keeper = None if call.forward_pass is None else self._keepers.get(call.forward_pass)
        # Only where the keeper is free: a derivative that waited for one busy worker while others are idle
        # would be slower than one that sends its inputs again, which is what the refusal (412) makes its
        # caller do.
        if keeper is not None and keeper.is_usable and keeper in self._idle:
            self._idle.remove(keeper)
            return keeper
        while self._idle:
            worker = self._idle.popleft()
            if worker.is_usable:
                return worker
        # The order of the two refusals: a full queue says "busy" (`queue_full`) also while the component
        # crashes, because calls that wait then are answered by the replacement; `degraded` is for a pool
        # without any worker.
        if len(self._waiting) >= self.max_queue:
            raise CallError.unavailable(
                f"All {self._size} workers are busy and {self.max_queue} calls wait already.",
                "queue_full",
            )
        if not self.is_ready and not self._workers:
            raise CallError.unavailable(
                "The component keeps crashing; it is being restarted.", "degraded", 5
            )
        # A process that takes too long is replaced, so a turn comes. A thread may never be free again.
        return await self._turn(call, timeout_s if self.memory is None else None)

    async def _turn(self, call: Call, timeout_s: float | None) -> Worker:
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await asyncio.wait_for(turn, timeout_s)
        except (asyncio.CancelledError, TimeoutError) as error:
            # The race: `_release` may have given this turn a worker in the same step of the event loop in
            # which the caller left. The worker must go to the next in the queue, or it is lost for good.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release(turn.result())
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                assert timeout_s is not None
                raise too_slow(call.endpoint, timeout_s, was_stopped=False) from None
            raise

    def _release(self, worker: Worker) -> None:
        """Give a worker to the next call, if it can take one.

        A process that was killed is not usable, and its replacement comes here when it has started. A thread
        that still computes for a caller who left comes here again when it is done (`_on_change`).
        """
        if not worker.is_usable or worker not in self._workers:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(worker)
                return
        self._idle.append(worker)

    def _make_worker(self) -> Worker:
        if self.memory is None:
            return WorkerThread(self._source, self._config, self._on_change)
        return WorkerProcess(self._source, self._config, self._on_change, self._output, self.memory)

    async def _start_one(self, place: int) -> Facts:
        # The place names the new worker before it is ready, and `_workers` does not hold it yet: `_state`
        # therefore says `starting`, and the end of a worker that never got ready is reported here and not by
        # `_on_change`.
        worker = self._places[place] = self._make_worker()
        try:
            facts = await asyncio.wait_for(worker.start(), self._startup_timeout_s)
        except TimeoutError:
            worker.kill()
            raise not_loaded(self._startup_timeout_s) from None
        except BaseException:
            worker.kill()
            raise
        if self.is_stopping:
            worker.kill()
            raise CallError.stopping()
        self._workers.add(worker)
        self._release(worker)
        return facts

    def _on_change(self, worker: Worker) -> None:
        """A worker has ended, or is free again after a call that its caller gave up."""
        if worker.is_alive:
            self._release(worker)
            return
        if worker not in self._workers:
            return  # it never got ready, which `_start_one` reports
        self._workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if not self.is_stopping:
            task = asyncio.get_running_loop().create_task(self._replace(self._place_of(worker)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _place_of(self, worker: Worker) -> int:
        (place,) = (place for place, found in self._places.items() if found is worker)
        return place

    async def _replace(self, place: int) -> None:
        self._restarts[place] += 1
        self._device_bytes.pop(place, None)
        while not self.is_stopping:
            await asyncio.sleep(self._backoff_s())
            try:
                await self._start_one(place)
                return
            except (ChainruleError, OSError) as error:
                self._failures_in_a_row += 1
                _log.error("A worker could not be started: %s", error)
                if not self.is_ready and not self._workers:
                    self._fail_waiting(
                        CallError.unavailable("The component cannot be started.", "degraded", 5)
                    )

    def _backoff_s(self) -> float:
        # A first failure is most often the fault of one call, so its worker is replaced without a pause. From
        # the second in a row on, the pause is 0.1 s · 2^(n-2), at most 10 s: a component that cannot live
        # must not occupy the processors with its own import.
        if self._failures_in_a_row <= 1:
            return 0.0
        return min(_FIRST_BACKOFF_S * 2 ** (self._failures_in_a_row - 2), _MAX_BACKOFF_S)

    def _fail_waiting(self, error: CallError) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    async def stop(self) -> None:
        """End all workers; calls that are under way fail.

        The order: no worker is replaced any more, then the queue fails, then the workers end. In another
        order a call of the queue would get a worker that is about to be killed.
        """
        self.is_stopping = True
        for task in self._tasks:
            task.cancel()
        self._fail_waiting(CallError.stopping())
        await asyncio.gather(*(worker.close() for worker in list(self._workers)))

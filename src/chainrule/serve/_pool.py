"""The workers of one component: a bounded queue in front, replacements behind.

Why not a library: `ProcessPoolExecutor` breaks for good when one process dies, `pebble` and `loky` replace
processes but pickle every argument and result, and none of them lets the server cancel one call and keep
the process warm. What is left after taking that away is this file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chainrule._errors import ChainruleError, DefinitionError
from chainrule._samehost import is_supported
from chainrule.serve._calls import Call, CallError, Facts, Reply, not_loaded, stopping, unavailable
from chainrule.serve._logs import OutputLog
from chainrule.serve._metrics import Traffic
from chainrule.serve._process import WorkerProcess

if TYPE_CHECKING:
    from chainrule.serve._merging import Merger

_log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 10.0
# A pool whose workers failed this often in a row turns callers away instead of letting them wait.
_FAILURES_UNTIL_UNAVAILABLE = 3


@dataclass
class Counters:
    """What happened so far, for `/metrics`."""

    answered: int = 0
    crashed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    turned_away: int = 0
    running: int = 0


class WorkerState(NamedTuple):
    """One worker, for those who watch.

    Attributes:
        id: of its place; a replacement has the same.
        pid: of its process; `None` while there is none.
        state: `idle`, `busy` or `starting`.
        restarts: how often it was replaced.
    """

    id: int
    pid: int | None
    state: str
    restarts: int


class Pool(Protocol):
    """What answers calls: worker processes, a thread, or the replicas of a cluster."""

    uses_segments: bool
    max_queue: int
    counters: Counters
    traffic: Traffic

    @property
    def queue_length(self) -> int: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def alive(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def workers(self) -> list[WorkerState]: ...
    async def start(self) -> Facts: ...
    async def call(self, call: Call) -> Reply: ...
    async def drain(self, grace_s: float) -> None: ...
    async def stop(self) -> None: ...


class ProcessPool:
    """Supervised worker processes of one component.

    Args:
        source: what `load_component` takes; pickled.
        config: the component's settings.
        workers: how many processes.
        timeout_s: how long one call may run; `None` for ever.
        max_queue: how many calls may wait for a free process.
        startup_timeout_s: how long loading the component may take.
        log: where the output of the processes goes.
    """

    uses_segments = True

    def __init__(
        self,
        source: Any,
        config: Any,
        *,
        workers: int,
        timeout_s: float | None,
        max_queue: int,
        startup_timeout_s: float,
        log: OutputLog | None = None,
    ) -> None:
        if not is_supported():
            raise DefinitionError(
                "Worker processes need Linux; use workers=0 here.", code="not_supported"
            )
        self._source, self._config = source, config
        self._size = workers
        self._timeout_s = timeout_s
        self.max_queue = max_queue
        self._startup_timeout_s = startup_timeout_s
        self._log = log
        self._workers: set[WorkerProcess] = set()
        self._idle: deque[WorkerProcess] = deque()
        self._waiting: deque[asyncio.Future[WorkerProcess]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures_in_a_row = 0
        self._stopping = False
        self._places: dict[int, WorkerProcess | None] = dict.fromkeys(range(workers))
        self._restarts = [0] * workers
        self.counters = Counters()
        self.traffic = Traffic()

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
        return not self._stopping and self._failures_in_a_row < _FAILURES_UNTIL_UNAVAILABLE

    @property
    def alive(self) -> int:
        """How many workers are up."""
        return len(self._workers)

    @property
    def size(self) -> int:
        """How many calls can be under way."""
        return self._size

    @property
    def workers(self) -> list[WorkerState]:
        """What the workers do."""
        return [self._state(place, worker) for place, worker in self._places.items()]

    def _state(self, place: int, worker: WorkerProcess | None) -> WorkerState:
        restarts = self._restarts[place]
        if worker is None or worker not in self._workers:
            return WorkerState(place, None, "starting", restarts)
        return WorkerState(place, worker.pid, "idle" if worker in self._idle else "busy", restarts)

    async def call(self, call: Call) -> Reply:
        """Have a call answered by the next free worker.

        Raises:
            CallError: no room, stopping, or the worker died or hung.
        """
        return await self.traffic.counted(call, self._answer(call))

    async def _answer(self, call: Call) -> Reply:
        worker = await self._acquire()
        self.counters.running += 1
        try:
            if call.watcher is not None:
                await call.watcher.on_start()
            reply = await worker.call(call, timeout_s=call.timeout_s(self._timeout_s))
            self.counters.answered += 1
            self._failures_in_a_row = 0
            return reply
        except CallError as error:
            self._count(error)
            if self._stopping:
                raise stopping() from error
            raise
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        finally:
            self.counters.running -= 1
            self._release(worker)

    def _count(self, error: CallError) -> None:
        if error.code == "call_timeout":
            self.counters.timed_out += 1
        else:
            self.counters.crashed += 1
            self._failures_in_a_row += 1

    async def _acquire(self) -> WorkerProcess:
        if self._stopping:
            raise stopping()
        while self._idle:
            worker = self._idle.popleft()
            if worker.is_usable:
                return worker
        if len(self._waiting) >= self.max_queue:
            self.counters.turned_away += 1
            raise unavailable(
                f"All {self._size} workers are busy and {self.max_queue} calls wait already.",
                "queue_full",
            )
        if not self.is_ready and not self._workers:
            raise unavailable("The component keeps crashing; it is being restarted.", "degraded", 5)
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release(turn.result())
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _release(self, worker: WorkerProcess) -> None:
        if not worker.is_usable or worker not in self._workers:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(worker)
                return
        self._idle.append(worker)

    async def _start_one(self, place: int) -> Facts:
        worker = WorkerProcess(self._source, self._config, self._on_exit, self._log)
        self._places[place] = worker
        try:
            facts = await asyncio.wait_for(worker.start(), self._startup_timeout_s)
        except TimeoutError:
            worker.kill()
            raise not_loaded(self._startup_timeout_s) from None
        except BaseException:
            worker.kill()
            raise
        if self._stopping:
            worker.kill()
            raise stopping()
        self._workers.add(worker)
        self._release(worker)
        return facts

    def _on_exit(self, worker: WorkerProcess) -> None:
        if worker not in self._workers:
            return  # it never got ready; whoever started it knows
        self._workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if not self._stopping:
            task = asyncio.get_running_loop().create_task(self._replace(self._place_of(worker)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _place_of(self, worker: WorkerProcess) -> int:
        (place,) = (place for place, found in self._places.items() if found is worker)
        return place

    async def _replace(self, place: int) -> None:
        self._restarts[place] += 1
        while not self._stopping:
            await asyncio.sleep(self._backoff_s())
            try:
                await self._start_one(place)
                return
            except (ChainruleError, OSError) as error:
                self._failures_in_a_row += 1
                _log.error("A worker could not be started: %s", error)
                if not self.is_ready and not self._workers:
                    self._turn_away_waiting()

    def _backoff_s(self) -> float:
        if self._failures_in_a_row <= 1:
            return 0.0
        return min(_FIRST_BACKOFF_S * 2 ** (self._failures_in_a_row - 2), _MAX_BACKOFF_S)

    def _turn_away_waiting(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(unavailable("The component cannot be started.", "degraded", 5))

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, and wait until those under way are answered."""
        self._stopping = True
        deadline = time.monotonic() + grace_s
        while (self.counters.running or self._waiting) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End all workers; calls that are under way fail."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(stopping())
        await asyncio.gather(*(worker.close() for worker in list(self._workers)))


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

    async def call(self, call: Call) -> Reply:
        """Have a call answered, alone or together with others.

        Raises:
            CallError: as by the pool.
        """
        return await (self.pool if self.merger is None else self.merger).call(call)

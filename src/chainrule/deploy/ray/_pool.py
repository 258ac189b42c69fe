"""The pool as one caller sees it: who is in it follows the keeper, who hears of the load in turn."""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
from typing import Any

import ray
from ray.exceptions import RayError

from chainrule._errors import TransportError
from chainrule._lru_cache import LRUCache
from chainrule.deploy._pool import PoolTransport
from chainrule.deploy.ray._keeper import Report, Roster
from chainrule.deploy.ray._plan import Plan
from chainrule.deploy.ray._replica import ActorReplica

_log = logging.getLogger(__name__)

_MESSAGE_S = 0.02
_FORGET = 0.9
_REPORT_EVERY_S = 0.5
_ANSWER_WITHIN_S = 10.0


class RayPool(PoolTransport):
    """A way to the replicas of a keeper. It can be sent to other processes of the cluster.

    It looks for the replicas when it is first used: a process that receives it cannot ask Ray for anything
    before it has been received.

    Args:
        keeper: handle of the keeper.
        plan: of the pool.
        ends_with_handle: whether closing it ends the pool.
        startup_timeout_s: how long to wait for replicas.
    """

    def __init__(
        self, keeper: Any, plan: Plan, *, ends_with_handle: bool, startup_timeout_s: float
    ) -> None:
        super().__init__(
            f"pool {plan.name} on Ray" if plan.name else "pool on Ray",
            depth=plan.depth,
            max_replicas=plan.maximum,
            idempotent=plan.idempotent,
            max_deaths=plan.max_deaths,
            startup_timeout_s=startup_timeout_s,
        )
        self.max_group = plan.max_group if plan.idempotent else 1
        self._keeper = keeper
        self._plan = plan
        self._ends_with_handle = ends_with_handle
        self._caller = secrets.token_hex(8)
        self._stop_reporting = threading.Event()
        self._reporter = threading.Thread(target=self._report, name="chainrule-report", daemon=True)
        self._starting = threading.Lock()
        self._is_started = False
        self._each_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._keeper, self._plan, self._startup_timeout_s)

    def start(self) -> None:
        """Find the replicas and wait for them, once."""
        if self._is_started or self.is_closed:
            return
        with self._starting:
            if self._is_started:
                return
            try:
                self._apply(ray.get(self._keeper.roster.remote()))
            except RayError as error:
                raise TransportError(
                    f"The {self.place} has ended, or its keeper cannot be reached.",
                    code="pool_unavailable",
                ) from error
            self._reporter.start()
            # Ray does not survive a thread that asks it for something while the interpreter ends.
            atexit.register(self.close)
            self._is_started = True
        self.wait_until_ready(self._plan.minimum)

    @property
    def facts(self) -> dict[str, Any]:
        """What a server tells about the component."""
        return next(replica.facts for replica in self._replicas if replica.facts)

    def group_size(self) -> int:
        """As many calls as keep a replica busy for longer than a message is under way."""
        if self._each_s is None:
            return 1
        return max(1, min(int(_MESSAGE_S / self._each_s), self.max_group))

    def _note_time(self, each_s: float) -> None:
        """A call took so long. The longest ones count, and are forgotten in time."""
        self._each_s = max(each_s, _FORGET * (self._each_s or 0.0))

    def close(self) -> None:
        """Let go of the replicas; a pool that nobody else knows by a name ends."""
        atexit.unregister(self.close)
        self._stop_reporting.set()
        for slot in self._dispatcher.slots:
            slot.replica.stop()
        super().close()
        if self._is_started:
            self._reporter.join(_ANSWER_WITHIN_S)
        if not ray.is_initialized():
            return
        if self._ends_with_handle:
            ray.kill(self._keeper)
        else:
            self._keeper.forget.remote(self._caller)

    @property
    def _replicas(self) -> list[ActorReplica]:
        replicas = (slot.replica for slot in self._dispatcher.slots)
        return [replica for replica in replicas if isinstance(replica, ActorReplica)]

    def _apply(self, roster: Roster) -> None:
        self._version = roster.version
        known = {slot.replica.id: slot for slot in self._dispatcher.slots}
        for id, actor in roster.actors.items():
            if id not in known:
                self.add_replica(
                    ActorReplica(id, actor, self._keeper, self._plan.timeout_s, self._note_time)
                )
        for id, slot in known.items():
            if id not in roster.actors:
                self.remove_replica(slot)

    def _report(self) -> None:
        # Ray would start a cluster of its own if it were asked for anything after its end.
        while not self._stop_reporting.wait(_REPORT_EVERY_S) and ray.is_initialized():
            try:
                answer = self._keeper.report.remote(self._make_report())
                roster = ray.get(answer, timeout=_ANSWER_WITHIN_S)
            except Exception as error:  # more than its own errors, while Ray is being shut down
                _log.info("%s: the keeper does not answer (%s)", self.place, type(error).__name__)
                continue
            if roster is not None and not self._stop_reporting.is_set():
                self._apply(roster)

    def _make_report(self) -> Report:
        slots = self._dispatcher.slots
        return Report(
            self._caller,
            self._version,
            self._dispatcher.load,
            {slot.replica.id: slot.in_flight for slot in slots},
            tuple(replica.id for replica in self._replicas if replica.is_dead),
        )


# A process that receives a pool with every task it runs finds the same one again.
_received: LRUCache[str, RayPool] = LRUCache(64)


def _attach(keeper: Any, plan: Plan, startup_timeout_s: float) -> RayPool:
    known = _received.get(plan.id)
    if known is not None and not known.is_closed:
        return known
    pool = RayPool(keeper, plan, ends_with_handle=False, startup_timeout_s=startup_timeout_s)
    _received.put(plan.id, pool)
    return pool

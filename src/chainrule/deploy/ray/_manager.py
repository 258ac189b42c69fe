"""The manager of a pool: an actor that makes the replicas and decides how many there are.

Calls do not pass through it. Callers report their load twice a second, and the answer tells them of
changes. Replicas store here how far a call is, and its caller reads it; callers store here which calls they
have cancelled, and replicas read that. Replicas belong to the manager: when it is lost, Ray ends them and
restarts it, and it makes new ones.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

import ray

from chainrule._lru_cache import LRUCache
from chainrule.deploy._pool import Autoscaler
from chainrule.deploy.ray._actor import ReplicaActor
from chainrule.deploy.ray._messages import Plan, Report, Roster

# The load of a caller that has not reported for so long does not count any more.
_STALE_S = 10.0
# A replica that Ray gave up will often fail again for the same reason, so replacements are rare.
_REPLACE_EVERY_S = 2.0
_REMEMBERED = 1024
# A replica whose code holds the interpreter's lock does not ask; see `is_stuck`.
_ASKS_WITHIN_S = 1.0


class PoolManager:
    """Makes and ends replicas.

    Args:
        plan: the plan of the pool.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._make = ray.remote(ReplicaActor).options(**plan.options)
        self._scaler = Autoscaler(
            plan.minimum, plan.maximum, calls_per_replica=plan.depth, quiet_s=plan.quiet_s
        )
        self._actors: dict[str, Any] = {}
        self._leaving: dict[str, Any] = {}
        self._last_replaced = 0.0
        self._reports: dict[str, tuple[float, Report]] = {}
        self._progress: LRUCache[str, tuple[float, str]] = LRUCache(_REMEMBERED)
        self._cancelled: LRUCache[str, bool] = LRUCache(_REMEMBERED)
        self._last_asked: dict[str, float] = {}
        self._own_handle = ray.get_runtime_context().current_actor
        self._resize(plan.minimum)

    def plan(self) -> Plan:
        """The plan of the pool."""
        return self._plan

    def roster(self) -> Roster:
        """The replicas of the pool now."""
        return Roster(self._version, dict(self._actors))

    def report(self, report: Report) -> Roster | None:
        """Take the report of a caller; return the roster if it has changed."""
        now = time.monotonic()
        self._reports[report.caller] = (now, report)
        self._reports = {
            caller: entry for caller, entry in self._reports.items() if now - entry[0] < _STALE_S
        }
        if report.dead and now - self._last_replaced > _REPLACE_EVERY_S:
            self._last_replaced = now
            self._replace(report.dead)
        load = sum(each.load for _, each in self._reports.values())
        self._resize(self._scaler.target(len(self._actors), load))
        self._let_go()
        return None if report.version == self._version else self.roster()

    def forget(self, caller: str) -> None:
        """Note that a caller has left; after the last one the least number of replicas is enough."""
        self._reports.pop(caller, None)
        if not self._reports:
            self._resize(self._plan.minimum)
            self._let_go()

    def set_progress(self, call: str, fraction: float, message: str) -> None:
        """Store how far a call is."""
        self._progress.put(call, (fraction, message))

    def progress_of(self, call: str) -> tuple[float, str] | None:
        """How far a call is."""
        return self._progress.get(call)

    def cancel(self, call: str) -> None:
        """Store that the answer of a call is not wanted any more."""
        self._cancelled.put(call, True)

    def is_cancelled(self, replica: str, call: str) -> bool:
        """Whether a call was cancelled; the replica that runs it asks."""
        self._last_asked[replica] = time.monotonic()
        return self._cancelled.get(call) is not None

    def is_stuck(self, replica: str) -> bool:
        """Whether a replica that runs a long call has stopped asking: its process is blocked."""
        return time.monotonic() - self._last_asked.get(replica, 0.0) > _ASKS_WITHIN_S

    def _replace(self, dead: Iterable[str]) -> None:
        size = len(self._actors)
        for replica in dead:
            self._actors.pop(replica, None)
        self._resize(size)

    def _resize(self, size: int) -> None:
        if size == len(self._actors) and self._actors:
            return
        while len(self._actors) < size:
            replica = f"replica-{secrets.token_hex(4)}"
            self._actors[replica] = self._make.remote(self._plan, replica, self._own_handle)
        while len(self._actors) > size:
            replica, actor = self._actors.popitem()
            self._leaving[replica] = actor
        self._version = secrets.token_hex(8)

    def _let_go(self) -> None:
        """End the replicas that leave, once every caller knows that and has no call there.

        A caller with an older roster may still send calls to them, so its next report comes first.
        """
        reports = [report for _, report in self._reports.values()]
        if not all(report.version == self._version for report in reports):
            return
        for replica in list(self._leaving):
            if not any(report.in_flight.get(replica) for report in reports):
                ray.kill(self._leaving.pop(replica))
                self._last_asked.pop(replica, None)

"""The manager of a pool: an actor that makes replicas, knows who they are, and how many there should be.

Calls do not pass through it. Callers report their load twice a second, and learn of changes by the answer.
Replicas leave word here of how far a call is, where its caller looks; callers, that they have given one up.
Replicas belong to the manager: when it is lost, Ray ends them, starts it again, and it makes new ones.
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

# A caller that has not reported for so long is gone, and its load with it.
_STALE_S = 10.0
# A replica that dies for good will often do so again, for the same reason.
_REPLACE_EVERY_S = 2.0
_REMEMBERED = 1024
# Code that keeps Python from running keeps its replica from looking here.
_ASKS_WITHIN_S = 1.0


class PoolManager:
    """Makes replicas and lets them go.

    Args:
        plan: of the pool.
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
        """What was ordered."""
        return self._plan

    def roster(self) -> Roster:
        """Who is in the pool now."""
        return Roster(self._version, dict(self._actors))

    def report(self, report: Report) -> Roster | None:
        """Hear a caller; tells it of changes."""
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
        """A caller has left; when it was the last one, nobody needs more than the least."""
        self._reports.pop(caller, None)
        if not self._reports:
            self._resize(self._plan.minimum)
            self._let_go()

    def set_progress(self, call: str, fraction: float, message: str) -> None:
        """A replica says how far a call is."""
        self._progress.put(call, (fraction, message))

    def progress_of(self, call: str) -> tuple[float, str] | None:
        """How far a call is."""
        return self._progress.get(call)

    def cancel(self, call: str) -> None:
        """A caller does not want the answer of a call any more."""
        self._cancelled.put(call, True)

    def is_cancelled(self, replica: str, call: str) -> bool:
        """A replica asks whether the call it is at has been given up."""
        self._last_asked[replica] = time.monotonic()
        return self._cancelled.get(call) is not None

    def is_stuck(self, replica: str) -> bool:
        """Whether a replica with a call that lasts has not even looked."""
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
        """End replicas that every caller knows to be leaving and expects nothing of."""
        reports = [report for _, report in self._reports.values()]
        if not all(report.version == self._version for report in reports):
            return
        for replica in list(self._leaving):
            if not any(report.in_flight.get(replica) for report in reports):
                ray.kill(self._leaving.pop(replica))
                self._last_asked.pop(replica, None)

"""The pool as one caller sees it: a transport to actors, whose set follows the manager."""

from __future__ import annotations

import atexit
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    TaskCancelledError,
    WorkerCrashedError,
)

from chainrule._errors import ChainruleError, DefinitionError, TransportError
from chainrule._lru_cache import LRUCache
from chainrule._progress import is_heard
from chainrule.client import Ticket
from chainrule.client.internal import (
    Answer,
    PoolTransport,
    Replica,
    ReplicaLostError,
    read_answer,
)
from chainrule.deploy.ray._actor import CANCELLED, Envelope, Report, Roster, extract_references
from chainrule.deploy.ray._deploy import PoolPlan
from chainrule.runtime import progress

_log = logging.getLogger(__name__)

# About what a message of Ray takes; calls that take less are sent in groups (`group_size`).
_MESSAGE_S = 0.02
# The time of the slowest call so far counts this much less after each further call.
_FORGET = 0.9
# How often a caller reports its load, and how long the manager may take to answer.
_REPORT_EVERY_S = 0.5
_ANSWER_WITHIN_S = 10.0
_LOST = (RayActorError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)
_LOOK_AGAIN_S = 0.1
_ASK_EVERY_S = 0.2
# Longer than a replica takes to ask the manager, to interrupt the call and to end.
_CANCEL_WITHIN_S = 3.0


class RayPool(PoolTransport):
    """A transport to the replicas of a manager. It can be sent to other processes of the cluster.

    It asks for the replicas when it is first used: while a process unpickles it, Ray cannot be asked yet.

    Args:
        manager: handle of the manager.
        plan: the plan of the pool.
        ends_with_handle: whether closing it ends the pool.
        startup_timeout_s: how long to wait for replicas.
    """

    def __init__(
        self, manager: Any, plan: PoolPlan, *, ends_with_handle: bool, startup_timeout_s: float
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
        self._manager = manager
        self._plan = plan
        self._ends_with_handle = ends_with_handle
        self._caller = secrets.token_hex(8)
        self._stop_reporting = threading.Event()
        self._reporter = threading.Thread(target=self._report, name="chainrule-report", daemon=True)
        # Held while the manager is asked for the replicas: the first call asks, the others wait for its
        # answer. Until replicas are up, calls wait in the dispatcher.
        self._starting = threading.Lock()
        self._is_started = False
        self._each_s: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._manager, self._plan, self._startup_timeout_s)

    def start(self) -> None:
        """Find the replicas and wait for them, once."""
        if self._is_started or self.is_closed:
            return
        with self._starting:
            if self._is_started:
                return
            try:
                self._apply(ray.get(self._manager.roster.remote()))
            except RayError as error:
                raise TransportError(
                    f"The {self.place} has ended, or its manager cannot be reached.",
                    code="pool_unavailable",
                ) from error
            self._reporter.start()
            # Ray crashes when a thread calls it while the interpreter ends.
            atexit.register(self.close)
            self._is_started = True
        self.wait_until_ready(self._plan.minimum)

    @property
    def facts(self) -> dict[str, Any]:
        """What a server tells about the component."""
        return next(replica.facts for replica in self._replicas if replica.facts)

    def group_size(self) -> int:
        """So many calls in one message that they take longer than the message itself."""
        if self._each_s is None:
            return 1
        return max(1, min(int(_MESSAGE_S / self._each_s), self.max_group))

    def _note_time(self, each_s: float) -> None:
        """Note how long a call took: a maximum that decays, so that one slow call does not count for ever."""
        self._each_s = max(each_s, _FORGET * (self._each_s or 0.0))

    def close(self) -> None:
        """Stop using the replicas; a pool without a name ends."""
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
            ray.kill(self._manager)
        else:
            self._manager.forget.remote(self._caller)

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
                    ActorReplica(id, actor, self._manager, self._plan.timeout_s, self._note_time)
                )
        for id, slot in known.items():
            if id not in roster.actors:
                self.remove_replica(slot)

    def _report(self) -> None:
        # After `ray.shutdown`, any call of Ray would start a new cluster.
        while not self._stop_reporting.wait(_REPORT_EVERY_S) and ray.is_initialized():
            try:
                answer = self._manager.report.remote(self._make_report())
                roster = ray.get(answer, timeout=_ANSWER_WITHIN_S)
            except Exception as error:  # Ray raises more than its own errors while it shuts down
                _log.info("%s: the manager does not answer (%s)", self.place, type(error).__name__)
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


# A process that receives the same pool with every task uses one transport for all.
_received: LRUCache[str, RayPool] = LRUCache(64)


def _attach(manager: Any, plan: PoolPlan, startup_timeout_s: float) -> RayPool:
    known = _received.get(plan.id)
    if known is not None and not known.is_closed:
        return known
    pool = RayPool(manager, plan, ends_with_handle=False, startup_timeout_s=startup_timeout_s)
    _received.put(plan.id, pool)
    return pool


class ActorReplica(Replica):
    """Messages to the actor of a replica. Ray restarts the actor after a crash, on another node if necessary.

    Args:
        id: id of the replica.
        actor: handle of the actor.
        manager: the manager of the pool.
        timeout_s: how long one message may take.
        on_timed: called with the seconds that a call took.
    """

    def __init__(
        self,
        id: str,
        actor: Any,
        manager: Any,
        timeout_s: float | None,
        on_timed: Callable[[float], None],
    ) -> None:
        self.id = id
        self.facts: dict[str, Any] = {}
        self.is_dead = False
        self._on_timed = on_timed
        self._actor = actor
        self._manager = manager
        self._timeout_s = timeout_s
        self._is_stopped = threading.Event()

    def start(self) -> dict[str, Any]:
        """Wait until Ray has started the actor and the component is loaded."""
        while not self._is_stopped.wait(_LOOK_AGAIN_S):
            answer = self._describe()
            if isinstance(answer, Envelope):
                error = _error_in(answer)
                raise DefinitionError(error.message, code=error.code) from error
            if answer is not None:
                self.facts = answer
                return answer["openapi"]
        raise TransportError("This component has been closed.", code="closed")

    def _describe(self) -> dict[str, Any] | Envelope | None:
        """What the actor tells about the component; `None` while it starts."""
        try:
            return ray.get(self._actor.describe.remote(), timeout=1.0)
        except GetTimeoutError:
            return None
        except ActorDiedError as error:
            self.is_dead = True
            raise TransportError(
                "Ray does not restart this replica any more; the pool makes another one.",
                code="replica_lost",
            ) from error
        except _LOST:
            return None
        except RayError as error:
            raise TransportError(
                f"Ray could not start the replica ({type(error).__name__}).", code="cluster_failed"
            ) from error

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have the actor answer."""
        references: list[Any] = []
        sent = extract_references(payload, references)
        name = _name_for(ticket)
        reference = self._actor.call.remote(endpoint, sent, run_id, name, is_heard(), *references)
        answer = self._wait(reference, ticket, name)
        if isinstance(answer, Envelope):
            raise _error_in(answer)
        return answer

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """Have the actor answer several calls in one message."""
        references: list[Any] = []
        sent = [extract_references(payload, references) for payload in payloads]
        name = _name_for(ticket)
        reference = self._actor.call_many.remote(endpoint, sent, name, *references)
        answers, each_s = self._wait(reference, ticket, name)
        self._on_timed(each_s)
        return [_error_in(each) if isinstance(each, Envelope) else each for each in answers]

    def answer(
        self, fields: Mapping[str, Any], body: Any, ticket: Ticket | None = None
    ) -> Envelope:
        """Have the actor answer a call that came over HTTP."""
        name = _name_for(ticket)
        reference = self._actor.answer.remote(fields, body, name, is_heard())
        return self._wait(reference, ticket, name)

    def stop(self) -> None:
        """Stop waiting; the manager ends the actor."""
        self._is_stopped.set()

    def _wait(self, reference: Any, ticket: Ticket | None, name: str | None) -> Any:
        try:
            if name is None and self._timeout_s is None:
                return ray.get(reference)
            return self._wait_watching(reference, ticket or Ticket(), name)
        except _LOST as error:
            raise ReplicaLostError(f"The replica was lost ({type(error).__name__}).") from error
        except TaskCancelledError as error:
            raise _cancelled() from error
        except RayError as error:
            raise TransportError(
                f"Ray could not carry the call or its answer ({type(error).__name__}).",
                code="cluster_failed",
            ) from error

    def _wait_watching(self, reference: Any, ticket: Ticket, name: str | None) -> Any:
        """Wait for the answer, the timeout, or the cancellation."""
        changed = threading.Event()
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: changed.set())
        ticket.when_cancelled(changed.set)
        deadline = time.monotonic() + (self._timeout_s or math.inf)
        try:
            while not changed.wait(_ASK_EVERY_S if is_heard() else self._timeout_s):
                if time.monotonic() >= deadline:
                    break
                self._pass_on_progress(name)
        finally:
            ticket.when_cancelled(None)
        if future.done():
            return future.result()
        if ticket.is_cancelled:
            return self._cancel(reference, future, name)
        ray.kill(self._actor, no_restart=False)
        raise ReplicaLostError(
            f"The component did not answer within {self._timeout_s:g} s and was stopped.",
            code="call_timeout",
            may_repeat=False,
        )

    def _cancel(self, reference: Any, future: Future[Any], name: str | None) -> NoReturn:
        """Take back a call that waits, interrupt one that runs, and end its process if that fails."""
        # Both, because this caller does not know whether the call waits (Ray takes it back) or runs (the
        # replica asks the manager, and interrupts it). The one that does not apply has no effect.
        ray.cancel(reference)
        self._manager.cancel.remote(name)
        try:
            future.result(_CANCEL_WITHIN_S)
        except _LOST as error:
            raise _cancelled(ReplicaLostError, may_repeat=False) from error
        except TimeoutError:
            # Either it waits behind another caller's call, or it blocks its process, which cannot ask.
            if ray.get(self._manager.is_stuck.remote(self.id)):
                ray.kill(self._actor, no_restart=False)
                raise _cancelled(ReplicaLostError, may_repeat=False) from None
        raise _cancelled()

    def _pass_on_progress(self, name: str | None) -> None:
        """Report here how far the call is there."""
        try:
            word = ray.get(self._manager.progress_of.remote(name), timeout=1.0)
        except RayError:
            return  # the answer does not depend on it
        if word is not None:
            progress(*word)


def _name_for(ticket: Ticket | None) -> str | None:
    """A name for a call whose progress is asked for, or that may be cancelled."""
    return secrets.token_hex(8) if ticket is not None or is_heard() else None


def _cancelled(kind: type[TransportError] = TransportError, **facts: Any) -> TransportError:
    return kind("The call was cancelled.", code="cancelled", **facts)


def _error_in(envelope: Envelope) -> ChainruleError:
    if envelope.status == CANCELLED.status:
        return _cancelled()
    try:
        read_answer(Answer(envelope.status, envelope.content_type, envelope.body))
    except ChainruleError as error:
        return error
    raise AssertionError("an envelope in place of an answer has an error")

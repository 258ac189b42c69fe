"""Actors on the cluster: replicas, and the manager that makes them.

A replica has the loaded, compiled component and the residuals of its forward passes.

The manager decides how many replicas there are. Calls do not pass through it. Callers report their load twice
a second, and the answer tells them of changes. Replicas store here how far a call is, and its caller reads
it; callers store here which calls they have cancelled, and replicas read that. Replicas belong to the
manager: when it is lost, Ray ends them and restarts it, and it makes new ones.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import ray
from pydantic import BaseModel
from ray.exceptions import RayError

from chainrule._errors import ChainruleError, ComponentError
from chainrule._lru_cache import LRUCache
from chainrule._progress import listening
from chainrule._trees import is_arraylike, map_leaves
from chainrule.deploy._scaling import Autoscaler
from chainrule.deploy.ray._deploy import PoolPlan
from chainrule.runtime import LocalComponent
from chainrule.runtime.internal import Run, to_plain
from chainrule.serve.internal import (
    Answerer,
    Call,
    Cancelled,
    problem_reply,
)

_log = logging.getLogger(__name__)

# How often a replica asks the manager whether its call was cancelled.
_LOOK_EVERY_S = 0.2
# A call that is cancelled is given this long to break off before its replica ends.
_GRACE_S = 1.0
# Smaller contents are sent as bytes, with the message.
_INLINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Report:
    """What a caller tells the manager twice a second.

    Attributes:
        caller: id of the caller.
        version: version of its roster.
        load: its calls that run or wait.
        in_flight: replica → calls of this caller that it has not answered.
        dead: replicas that Ray does not restart.
    """

    caller: str
    version: str
    load: int
    in_flight: Mapping[str, int]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roster:
    """The replicas of the pool.

    Attributes:
        version: changes with the set of replicas.
        actors: replica → handle of its actor.
    """

    version: str
    actors: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Envelope:
    """An encoded answer, as servers send it: for exceptions, and for calls that came over HTTP."""

    status: int
    content_type: str
    body: Any


CANCELLED = Envelope(499, "text/plain", b"")
"""In place of the answer of a cancelled call."""


def as_shared(content: Any) -> Any:
    """Bytes in the form in which Ray passes them on without a copy, which it does for arrays only."""
    return np.frombuffer(content, np.uint8) if len(content) > _INLINE_BYTES else content


class ReplicaActor:
    """Answers calls, one at a time. Never raises: Ray would wrap the exception in one of its own.

    Args:
        plan: the plan of the pool.
        replica: id of this replica.
        manager: the manager of the pool.
    """

    def __init__(self, plan: PoolPlan, replica: str, manager: Any) -> None:
        self._manager = manager
        self._interruption = Interruption(replica, manager)
        self._component: LocalComponent | None = None
        self._failure: Envelope | None = None
        try:
            self._answerer = Answerer.load(plan.source, plan.config, remembered=plan.residuals)
            self._component = self._answerer.component
        except Exception as error:
            self._failure = _problem("Loading the component", error, code="load_failed")

    def describe(self) -> dict[str, Any] | Envelope:
        """What a server tells about the component; the error if it could not be loaded."""
        return self._failure or asdict(self._answerer.facts)

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        run_id: str | None,
        name: str | None,
        is_heard: bool,
        *values: Any,
    ) -> Any:
        """The answer of an endpoint, or the error.

        Args:
            endpoint: its name.
            payload: the request.
            run_id: id of the run that the files of this call belong to.
            name: under which the call can be cancelled; `None` when it will not be.
            is_heard: whether the caller asks under this name how far it is.
            *values: values of the references in the payload.
        """
        try:
            with self._watched(name, is_heard):
                return self._call(endpoint, payload, run_id, values)
        except Cancelled:
            return CANCELLED

    def call_many(
        self,
        endpoint: str,
        payloads: Sequence[Mapping[str, Any]],
        name: str | None,
        *values: Any,
    ) -> tuple[list[Any], float]:
        """The answers of several calls, and how long one of them took."""
        start = time.perf_counter()
        try:
            with self._interruption.watching(name):
                answers = [self._call(endpoint, payload, None, values) for payload in payloads]
        except Cancelled:
            answers = [CANCELLED] * len(payloads)
        return answers, (time.perf_counter() - start) / len(payloads)

    def answer(
        self, fields: Mapping[str, Any], body: Any, name: str | None, is_heard: bool
    ) -> Envelope:
        """Answer a call that came over HTTP, from bytes to bytes."""
        if self._failure is not None:
            return self._failure
        try:
            with self._watched(name, is_heard):
                reply = self._answerer.answer(Call(body=body, **fields))
        except Cancelled:
            return CANCELLED
        return Envelope(reply.status, reply.content_type, as_shared(b"".join(reply.pieces)))

    def _call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        run_id: str | None,
        values: tuple[Any, ...],
    ) -> Any:
        if self._component is None:
            return self._failure
        try:
            run = Run(self._component.config, run_id=run_id)
            return self._answerer.compute(endpoint, insert_values(payload, values), run)
        except Exception as error:
            return _problem(endpoint, error)

    @contextmanager
    def _watched(self, name: str | None, is_heard: bool) -> Iterator[None]:
        def emit(fraction: float, message: str) -> None:
            self._manager.set_progress.remote(name, fraction, message)

        heard = listening(emit, whole_process=True) if is_heard else nullcontext()
        with self._interruption.watching(name), heard:
            yield


def _problem(what: str, error: Exception, code: str = "internal_error") -> Envelope:
    if not isinstance(error, ChainruleError):
        _log.error("%s failed", what, exc_info=error)
        failure = ComponentError(f"{what} raised {type(error).__name__}: {error}", code=code)
        failure.__cause__ = error
        error = failure
    # The cluster belongs to the caller, who may see its tracebacks.
    reply = problem_reply(error, debug=True)
    return Envelope(reply.status, reply.content_type, b"".join(reply.pieces))


class Interruption:
    """Interrupts the call that a replica runs when its caller has cancelled it.

    Ray takes back calls that wait in an actor, but does not interrupt one that runs. So callers tell the
    pool's manager, and a thread of each replica asks there while a call lasts. It then sends a signal to
    the main thread, on which Ray runs an actor's calls; the handler raises `Cancelled` there, even where
    Python sleeps. Code that does not return to Python within a grace period ends with its process, and Ray
    starts another one.

    The race: the call may end, and the next one begin, between the question and the signal. The handler
    therefore compares the names of the two calls, in the main thread, where the current call cannot change.

    Args:
        replica: id of this replica.
        manager: the manager of the pool.
    """

    def __init__(self, replica: str, manager: Any) -> None:
        self._replica, self._manager = replica, manager
        self._current: str | None = None
        self._unwanted: str | None = None
        signal.signal(signal.SIGUSR1, self._on_signal)
        threading.Thread(target=self._watch, name="chainrule-interruption", daemon=True).start()

    @contextmanager
    def watching(self, call: str | None) -> Iterator[None]:
        """Let a call be cancelled while the block runs; it then ends with `Cancelled`.

        Args:
            call: its name; `None` for a call that cannot be cancelled.
        """
        self._current = call
        try:
            yield
        finally:
            self._current = None

    def _on_signal(self, *_: Any) -> None:
        if self._current is not None and self._current == self._unwanted:
            self._current = None
            raise Cancelled

    def _watch(self) -> None:
        before = None
        while True:
            time.sleep(_LOOK_EVERY_S)
            call = self._current
            # Most calls end before the second look, and need no message to the manager.
            if call is not None and call == before and self._is_cancelled(call):
                self._break_off(call)
            before = call

    def _is_cancelled(self, call: str) -> bool:
        try:
            return ray.get(self._manager.is_cancelled.remote(self._replica, call), timeout=5.0)
        except RayError:
            return False  # the manager is restarting; ask again later

    def _break_off(self, call: str) -> None:
        self._unwanted = call
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        deadline = time.monotonic() + _GRACE_S
        while self._current == call:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.01)


@dataclass(frozen=True)
class _Placeholder:
    """In place of a reference; its value is inserted on the replica."""

    number: int


def extract_references(payload: Any, references: list[Any]) -> Any:
    """The payload as it is sent: plain data and arrays, with a placeholder for every reference.

    Ray passes arrays by reference and maps them where they are used, without a copy. A reference that a
    caller puts into the inputs (`ray.put(array)`) is sent as an argument of its own, which Ray resolves on
    the replica.

    Args:
        payload: the request.
        references: references are appended here.
    """

    def extract(leaf: Any) -> Any:
        if isinstance(leaf, ray.ObjectRef):
            references.append(leaf)
            return _Placeholder(len(references) - 1)
        if isinstance(leaf, BaseModel):
            return to_plain(leaf)
        # Arrays of NumPy's subclasses stay what they are, so that the component can refuse a masked one.
        return np.asarray(leaf) if is_arraylike(leaf) and not isinstance(leaf, np.ndarray) else leaf

    return map_leaves(
        extract, payload, is_leaf=lambda node: isinstance(node, BaseModel), plain=True
    )


def insert_values(payload: Any, values: tuple[Any, ...]) -> Any:
    """The payload with the values of its references."""
    if not values:
        return payload

    def insert(leaf: Any) -> Any:
        return values[leaf.number] if isinstance(leaf, _Placeholder) else leaf

    return map_leaves(insert, payload)


# --- the manager --------------------------------------------------------------------------------

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

    def __init__(self, plan: PoolPlan) -> None:
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

    def plan(self) -> PoolPlan:
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
            # The newest one: the others have compiled their programs and kept their forward passes for
            # longer.
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

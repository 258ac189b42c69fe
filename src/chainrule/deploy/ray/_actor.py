"""A replica on the cluster's side: the loaded, compiled component and the residuals of its forward passes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import ray
from pydantic import BaseModel
from ray.exceptions import RayError

from chainrule._errors import ChainruleError, ComponentError
from chainrule._progress import listening
from chainrule._trees import is_arraylike, map_leaves
from chainrule.deploy.ray._messages import CANCELLED, Envelope, Plan
from chainrule.runtime import LocalComponent
from chainrule.runtime.internal import Run, to_plain
from chainrule.serve.internal import (
    Answerer,
    Call,
    Cancelled,
    problem_reply,
)

_log = logging.getLogger(__name__)

_INLINE_BYTES = 1 << 16
_LOOK_EVERY_S = 0.2
_GRACE_S = 1.0


class ReplicaActor:
    """Answers calls, one at a time. Never raises: Ray would wrap the exception in one of its own.

    Args:
        plan: the plan of the pool.
        replica: id of this replica.
        manager: the manager of the pool.
    """

    def __init__(self, plan: Plan, replica: str, manager: Any) -> None:
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
        content: Any = b"".join(reply.pieces)
        if len(content) > _INLINE_BYTES:  # Ray shares arrays without a copy, but not bytes
            content = np.frombuffer(content, np.uint8)
        return Envelope(reply.status, reply.content_type, content)

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

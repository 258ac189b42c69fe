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
from chainrule._trees import is_arraylike
from chainrule.deploy.ray._messages import CANCELLED, Envelope, Plan
from chainrule.runtime import LocalComponent
from chainrule.runtime.internal import Run, listening, to_plain
from chainrule.serve.internal import (
    Answerer,
    Call,
    Cancelled,
    only_here,
    problem_reply,
)

_log = logging.getLogger(__name__)

_INLINE_BYTES = 1 << 16


class ReplicaActor:
    """Answers calls, one at a time. Never raises: an exception would come back as one of Ray's.

    Args:
        plan: of the pool.
        replica: its id.
        manager: of the pool, with whom the replica leaves word of its progress.
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
        """What a server tells about the component; why there is none, if it could not be loaded."""
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
        """The answer of an endpoint, or why there is none.

        Args:
            endpoint: its name.
            payload: the request.
            run_id: what files of this call are to be known by.
            name: by which the call may be given up; `None` when it will not be.
            is_heard: whether somebody asks, by this name, how far it is.
            *values: of the references in the payload.
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
        """A call that came over HTTP, from bytes to bytes."""
        if self._failure is not None:
            return self._failure
        try:
            with self._watched(name, is_heard):
                reply = self._answerer.answer(Call(body=body, **fields))
        except Cancelled:
            return CANCELLED
        content: Any = b"".join(reply.pieces)
        if len(content) > _INLINE_BYTES:  # as an array it is shared, not copied
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
            run = None if run_id is None else Run(self._component.config, run_id=run_id)
            component, filled = self._component, insert_values(payload, values)
            return only_here(lambda: component.call(endpoint, filled, run=run))
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
    # The cluster is the caller's own, so its tracebacks are for the caller's eyes.
    reply = problem_reply(error, debug=True)
    return Envelope(reply.status, reply.content_type, b"".join(reply.pieces))


_LOOK_EVERY_S = 0.2
_GRACE_S = 1.0


class Interruption:
    """Watches over the calls of one replica. Made by the main thread, on which Ray runs an actor's calls.

    A signal is what breaks into Python code, even where it sleeps. Code that is not back in Python within
    the grace ends with its process; Ray starts another one.

    Args:
        replica: its id.
        manager: of the pool, with whom callers leave word.
    """

    def __init__(self, replica: str, manager: Any) -> None:
        self._replica, self._manager = replica, manager
        self._current: str | None = None
        self._unwanted: str | None = None
        signal.signal(signal.SIGUSR1, self._on_signal)
        threading.Thread(target=self._watch, name="chainrule-interruption", daemon=True).start()

    @contextmanager
    def watching(self, call: str | None) -> Iterator[None]:
        """Let a call be given up while the block runs; it then ends with `Cancelled`.

        Args:
            call: by which its caller would name it; `None` when nobody would.
        """
        self._current = call
        try:
            yield
        finally:
            self._current = None

    def _on_signal(self, *_: Any) -> None:
        # Meanwhile the call may have ended, and another one begun.
        if self._current is not None and self._current == self._unwanted:
            self._current = None
            raise Cancelled

    def _watch(self) -> None:
        before = None
        while True:
            time.sleep(_LOOK_EVERY_S)
            call = self._current
            # A call that has just begun will be over soon: only the others are worth a message.
            if call is not None and call == before and self._is_cancelled(call):
                self._break_off(call)
            before = call

    def _is_cancelled(self, call: str) -> bool:
        try:
            return ray.get(self._manager.is_cancelled.remote(self._replica, call), timeout=5.0)
        except RayError:
            return False  # the manager is being started again; the next look finds it

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
    """Where the value of a reference belongs."""

    number: int


def extract_references(node: Any, references: list[Any]) -> Any:
    """The tree as it can be sent; references are appended to the list and leave a gap."""
    if type(node) is np.ndarray:
        return node
    if isinstance(node, ray.ObjectRef):
        references.append(node)
        return _Placeholder(len(references) - 1)
    if isinstance(node, BaseModel):
        return to_plain(node)
    if isinstance(node, Mapping):
        return {key: extract_references(value, references) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [extract_references(item, references) for item in node]
    # Arrays of NumPy's other classes stay what they are: a masked one is refused where it arrives.
    return np.asarray(node) if is_arraylike(node) and not isinstance(node, np.ndarray) else node


def insert_values(node: Any, values: tuple[Any, ...]) -> Any:
    """The tree with the values of its references."""
    if not values:
        return node
    if isinstance(node, _Placeholder):
        return values[node.number]
    if isinstance(node, dict):
        return {key: insert_values(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [insert_values(item, values) for item in node]
    return node

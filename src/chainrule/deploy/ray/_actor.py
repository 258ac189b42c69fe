"""A replica on the cluster's side: the loaded, compiled component and what its forward passes left."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chainrule._errors import ChainruleError, ComponentError
from chainrule.deploy.ray._cargo import fill_in
from chainrule.deploy.ray._interruption import Interruption
from chainrule.deploy.ray._plan import Plan
from chainrule.runtime import LocalComponent, load_component
from chainrule.runtime.internal import Run, listening
from chainrule.serve.internal import (
    Answerer,
    Call,
    Cancelled,
    only_here,
    problem_reply,
    reuse_residuals,
)

_log = logging.getLogger(__name__)

_INLINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Envelope:
    """An answer in the form in which servers send it: exceptions travel so, and whole calls over HTTP."""

    status: int
    content_type: str
    body: Any


GIVEN_UP = Envelope(499, "text/plain", b"")
"""In place of an answer that nobody waits for."""


class ReplicaActor:
    """Answers calls, one at a time. Never raises: an exception would come back as one of Ray's.

    Args:
        plan: of the pool.
        replica: its id.
        keeper: of the pool, with whom the replica leaves word of its progress.
    """

    def __init__(self, plan: Plan, replica: str, keeper: Any) -> None:
        self._keeper = keeper
        self._interruption = Interruption(replica, keeper)
        self._component: LocalComponent | None = None
        self._failure: Envelope | None = None
        try:
            self._component = only_here(lambda: load_component(plan.source, config=plan.config))
            reuse_residuals(self._component, remembered=plan.residuals)
            self._answerer = Answerer(self._component)
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
            return GIVEN_UP

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
            answers = [GIVEN_UP] * len(payloads)
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
            return GIVEN_UP
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
            component, filled = self._component, fill_in(payload, values)
            return only_here(lambda: component.call(endpoint, filled, run=run))
        except Exception as error:
            return _problem(endpoint, error)

    @contextmanager
    def _watched(self, name: str | None, is_heard: bool) -> Iterator[None]:
        def emit(fraction: float, message: str) -> None:
            self._keeper.leave_word.remote(name, fraction, message)

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

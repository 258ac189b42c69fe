"""A replica on the caller's side: messages to an actor."""

from __future__ import annotations

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
from chainrule.client import Ticket
from chainrule.client.internal import Answer, read_answer
from chainrule.deploy._pool import Replica, ReplicaLostError
from chainrule.deploy.ray._actor import GIVEN_UP, Envelope
from chainrule.deploy.ray._cargo import take_out
from chainrule.runtime.internal import is_heard, progress

_LOST = (RayActorError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)
_LOOK_AGAIN_S = 0.1
_ASK_EVERY_S = 0.2
# Longer than a replica takes to look, to break off and to end.
_GIVE_UP_S = 3.0


class ActorReplica(Replica):
    """An actor of the pool's keeper. Ray starts it again after a crash, on another node if need be.

    Args:
        id: of the replica.
        actor: its handle.
        keeper: of the pool, who knows how far calls are.
        timeout_s: how long one message may take.
        on_timed: is told how long a call took, in seconds.
    """

    def __init__(
        self,
        id: str,
        actor: Any,
        keeper: Any,
        timeout_s: float | None,
        on_timed: Callable[[float], None],
    ) -> None:
        self.id = id
        self.facts: dict[str, Any] = {}
        self.is_dead = False
        self._on_timed = on_timed
        self._actor = actor
        self._keeper = keeper
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
        """What the actor says of itself; `None` while it cannot."""
        try:
            return ray.get(self._actor.describe.remote(), timeout=1.0)
        except GetTimeoutError:
            return None
        except ActorDiedError as error:
            self.is_dead = True
            raise TransportError(
                "The replica's actor has ended for good; the pool makes another one.",
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
        cargo = take_out(payload, references)
        name = _name_for(ticket)
        reference = self._actor.call.remote(endpoint, cargo, run_id, name, is_heard(), *references)
        answer = self._wait(reference, ticket, name)
        if isinstance(answer, Envelope):
            raise _error_in(answer)
        return answer

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """Have the actor answer several calls in one message."""
        references: list[Any] = []
        cargo = [take_out(payload, references) for payload in payloads]
        name = _name_for(ticket)
        reference = self._actor.call_many.remote(endpoint, cargo, name, *references)
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
        """Nothing: actors are their keeper's."""
        self._is_stopped.set()

    def _wait(self, reference: Any, ticket: Ticket | None, name: str | None) -> Any:
        try:
            if name is None and self._timeout_s is None:
                return ray.get(reference)
            return self._wait_watching(reference, ticket or Ticket(), name)
        except _LOST as error:
            raise ReplicaLostError(f"The replica was lost ({type(error).__name__}).") from error
        except TaskCancelledError as error:
            raise _given_up() from error
        except RayError as error:
            raise TransportError(
                f"Ray could not carry the call or its answer ({type(error).__name__}).",
                code="cluster_failed",
            ) from error

    def _wait_watching(self, reference: Any, ticket: Ticket, name: str | None) -> Any:
        """Wait for the answer, the end of the time, or that the caller gives up."""
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
            return self._give_up(reference, future, name)
        ray.kill(self._actor, no_restart=False)
        raise ReplicaLostError(
            f"The component did not answer within {self._timeout_s:g} s and was stopped.",
            code="call_timeout",
            may_repeat=False,
        )

    def _give_up(self, reference: Any, future: Future[Any], name: str | None) -> NoReturn:
        """Have a call that waits never run, and one that runs broken off, with its process if need be."""
        ray.cancel(reference)
        self._keeper.give_up.remote(name)
        try:
            future.result(_GIVE_UP_S)
        except _LOST as error:
            raise _given_up(ReplicaLostError, may_repeat=False) from error
        except TimeoutError:
            # Either it waits behind somebody else's call, or it keeps its own process from looking.
            if ray.get(self._keeper.is_stuck.remote(self.id)):
                ray.kill(self._actor, no_restart=False)
                raise _given_up(ReplicaLostError, may_repeat=False) from None
        raise _given_up()

    def _pass_on_progress(self, name: str | None) -> None:
        """Tell whoever listens here how far the call is there."""
        try:
            word = ray.get(self._keeper.last_word.remote(name), timeout=1.0)
        except RayError:
            return  # the answer does not depend on it
        if word is not None:
            progress(*word)


def _name_for(ticket: Ticket | None) -> str | None:
    """A name for a call that somebody may ask for, or give up."""
    return secrets.token_hex(8) if ticket is not None or is_heard() else None


def _given_up(kind: type[TransportError] = TransportError, **facts: Any) -> TransportError:
    return kind("The call was given up.", code="cancelled", **facts)


def _error_in(envelope: Envelope) -> ChainruleError:
    if envelope.status == GIVEN_UP.status:
        return _given_up()
    try:
        read_answer(Answer(envelope.status, envelope.content_type, envelope.body))
    except ChainruleError as error:
        return error
    raise AssertionError("an envelope that is no answer carries an error")

"""A pool as a transport: every call is answered by some replica, even when others die."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import xxhash

from chainrule._content_store import content_digest
from chainrule._errors import InputError, TransportError
from chainrule._lru_cache import LRUCache
from chainrule._trees import is_arraylike, map_leaves
from chainrule.client._pool._dispatch import Dispatcher, Replica, ReplicaLostError, Slot
from chainrule.client._pool._supervision import Keeper, Supervisor
from chainrule.client._transport import Ticket, Transport

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FORWARD = "apply"
_BACKWARD = "vector_jacobian_product"
# Forward passes whose replica is remembered; a forgotten one costs another forward pass.
_REMEMBERED = 4096
# How often `wait_for` looks whether replicas are up.
_POLL_S = 0.02


def fingerprint(tree: Any) -> bytes:
    """A digest of nested data: structure, values, and (a bounded sample of) the bytes of arrays."""
    arrays: list[np.ndarray] = []

    def outline(leaf: Any) -> Any:
        if not is_arraylike(leaf):
            return leaf
        arrays.append(np.asarray(leaf))
        return "array"

    text = repr(map_leaves(outline, tree, plain=True))
    return xxhash.xxh3_128_digest(text.encode()) + content_digest(arrays)


class ForwardPasses:
    """Which replica ran the forward pass of which inputs. Safe between threads.

    A gradient goes to the replica that ran its forward pass, which may still have the residuals; so do other
    derivatives that take residuals. It waits for that replica where the author's code takes residuals.
    Otherwise it goes elsewhere while another one is free, so that several products at one point are computed
    at the same time. Replicas find residuals by the content of the inputs, so a wrong or forgotten entry only
    costs another forward pass.
    """

    def __init__(self) -> None:
        self._replicas: LRUCache[bytes, str] = LRUCache(_REMEMBERED)
        self._lock = threading.Lock()  # of the two counts; the cache has its own
        self._hits = self._misses = 0

    def replica_for(self, endpoint: str, point: bytes | None) -> str | None:
        """The replica that a call should go to; `None` when it does not matter."""
        if endpoint == _FORWARD or point is None:
            return None
        found = self._replicas.get(point)
        with self._lock:
            self._hits += found is not None
            self._misses += found is None
        return found

    def note(self, endpoint: str, point: bytes | None, replica: str) -> None:
        """Note that a replica has answered a call."""
        if endpoint == _FORWARD and point is not None:
            self._replicas.put(point, replica)

    @property
    def counts(self) -> dict[str, int]:
        """How many gradients found their forward pass, and how many did not."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses}


class ReplicatedTransport(Transport):
    """Replicas of one component as one transport: a call whose replica is lost goes to another one.

    Args:
        place: where the replicas are, for messages.
        dispatcher: hands them out to calls.
        keeper: knows what they are copies of.
        idempotent: calls may run twice; they are then repeated when a replica dies.

    Attributes:
        is_closed: whether it takes no more calls.
    """

    def __init__(
        self, place: str, *, dispatcher: Dispatcher, keeper: Keeper, idempotent: bool
    ) -> None:
        self.place = place
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._idempotent = idempotent
        self._forward_passes = ForwardPasses()
        self._repeated = 0
        self.is_closed = False
        # Not at exit: the replicas end with this process anyway, and no thread can be started then.
        weakref.finalize(self, keeper.close_in_thread).atexit = False

    @property
    def known_document(self) -> dict[str, Any] | None:
        """The document that the first replica gave."""
        return self._keeper.document

    @abstractmethod
    def start(self) -> None:
        """Find the replicas, if that has not been done; every call begins with this."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Replicas and their states, calls that wait, repeated calls, and gradients that found residuals."""

    @abstractmethod
    def _check_repeat(
        self, error: ReplicaLostError, endpoint: str, deaths: int, since: float, ticket: Ticket
    ) -> None:
        """Raise if a call whose replica was lost must not be repeated.

        Args:
            error: how the replica was lost.
            endpoint: what was asked for.
            deaths: how many replicas have got the call and were lost.
            since: when the call began, as `time.monotonic` tells it.
            ticket: with which the caller may have cancelled.
        """

    def health(self) -> dict[str, Any]:
        """`ok` while a replica is up, `degraded` while none is; and what `status` says."""
        self.start()
        return {"status": "ok" if self._dispatcher.up else "degraded", **self.status()}

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have a replica answer, and another one if it is lost.

        Raises:
            InputError: the request is at fault; `poison_input` when it kills every replica that tries.
            TransportError: no answer came; `replica_lost` when calls may not be repeated.
        """
        self.start()
        point = self._point(endpoint, payload)
        return self.attempt(
            endpoint,
            point,
            lambda replica: replica.call(endpoint, payload, run_id=run_id, ticket=ticket),
            ticket or Ticket(),
        )

    def attempt(
        self, endpoint: str, point: bytes | None, ask: Callable[[Replica], T], ticket: Ticket
    ) -> T:
        """What `ask` gives for some replica.

        Args:
            endpoint: what is asked for.
            point: fingerprint of the inputs.
            ask: sends the call.
            ticket: with which the caller may cancel.
        """
        self.start()
        deaths, since = 0, time.monotonic()
        last: str | None = None
        while True:
            try:
                with self._lease(endpoint, point, last, ticket) as slot:
                    answer = self._ask(slot, ask, ticket)
                self._forward_passes.note(endpoint, point, slot.replica.id)
                return answer
            except ReplicaLostError as error:
                # Only a replica that may have begun counts: neither is the call suspected of having killed
                # the others, nor is it run alone for them, and repeating it repeats no effect.
                deaths += not error.never_began
                last = last if error.never_began else slot.replica.id
                self._check_repeat(error, endpoint, deaths, since, ticket)
                self._repeated += not error.never_began

    def depends_on_replica(self, endpoint: str) -> bool:
        """Whether it matters which replica answers an endpoint."""
        residuals = self._keeper.residual_endpoints
        if endpoint == _FORWARD:
            return self._keeper.gives_gradients or bool(residuals)
        return endpoint == _BACKWARD or endpoint in residuals

    def close(self) -> None:
        """End the replicas, or the connections to them."""
        self.is_closed = True
        self._keeper.close()

    @abstractmethod
    def _lease(
        self, endpoint: str, point: bytes | None, last: str | None, ticket: Ticket
    ) -> AbstractContextManager[Slot]:
        """A replica for a call.

        Args:
            endpoint: what is asked for.
            point: fingerprint of the inputs.
            last: id of the replica that had the call last and was lost; `None` when none was.
            ticket: with which the caller may cancel.
        """

    def _home(self, endpoint: str, point: bytes | None) -> str | None:
        """The replica that a call should go to; `None` when it does not matter."""
        return self._forward_passes.replica_for(endpoint, point)

    def _point(self, endpoint: str, payload: Mapping[str, Any]) -> bytes | None:
        return fingerprint(payload.get("inputs")) if self.depends_on_replica(endpoint) else None

    def _ask(self, slot: Slot, ask: Callable[[Replica], T], ticket: Ticket) -> T:
        try:
            return ask(slot.replica)
        except ReplicaLostError:
            self._dispatcher.mark_lost(slot)
            raise


class PoolTransport(ReplicatedTransport):
    """Replicas that live for this transport. They end when it is closed or garbage-collected.

    Args:
        place: where the pool is, for messages.
        depth: calls that one replica may have at once.
        max_replicas: the greatest number of replicas.
        idempotent: calls may run twice; they are then repeated when a replica dies.
        max_deaths: a call that this many replicas died of is refused (`poison_input`).
        startup_timeout_s: how long callers wait while no replica is up.
    """

    def __init__(
        self,
        place: str,
        *,
        depth: int,
        max_replicas: int,
        idempotent: bool,
        max_deaths: int,
        startup_timeout_s: float,
    ) -> None:
        # Without repeats a replica has one call at a time: of two in a dead replica, it is unknown which ran.
        depth = depth if idempotent else 1
        dispatcher = Dispatcher(depth, startup_timeout_s)
        self._supervisor = Supervisor(dispatcher)
        super().__init__(
            place, dispatcher=dispatcher, keeper=self._supervisor, idempotent=idempotent
        )
        self.max_concurrency = max_replicas * depth
        self._max_deaths = max_deaths
        self._startup_timeout_s = startup_timeout_s

    def start(self) -> None:
        """Connect to the replicas; a pool that does so at its first call overrides this."""

    def describe(self) -> dict[str, Any]:
        """The document that the first replica gave."""
        self.start()
        if self._supervisor.document is None:
            self.wait_until_ready(1)
        assert self._supervisor.document is not None, "set before a replica is marked as up"
        return self._supervisor.document

    def status(self) -> dict[str, Any]:
        """Replicas and their states, calls that wait, repeated calls, and gradients that found residuals."""
        return {
            "replicas": [
                {
                    "id": slot.replica.id,
                    "state": slot.state,
                    "in_flight": slot.in_flight,
                    "restarts": slot.deaths,
                }
                for slot in self._dispatcher.slots
            ],
            "waiting": self._dispatcher.waiting,
            "repeated": self._repeated,
            "affinity": self._forward_passes.counts,
        }

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """Several calls in one message to one replica. If it dies, they are repeated one by one."""
        self.start()
        ticket = ticket or Ticket()
        if self._idempotent:
            points = [self._point(endpoint, payload) for payload in payloads]
            try:
                with self._dispatcher.lease(ticket=ticket) as slot:
                    answers = self._ask(
                        slot,
                        lambda replica: replica.call_many(endpoint, payloads, ticket=ticket),
                        ticket,
                    )
                for point in points:
                    self._forward_passes.note(endpoint, point, slot.replica.id)
                return answers
            except ReplicaLostError:
                self._repeated += len(payloads)
            except TransportError as error:
                return [error] * len(payloads)
        return super().call_many(endpoint, payloads, ticket=ticket)

    def add_replica(self, replica: Replica) -> None:
        """Start one more replica, and keep it alive."""
        self._supervisor.add(replica)

    def remove_replica(self, slot: Slot) -> None:
        """Give a replica no more calls; it leaves when it has answered those it has."""
        self._dispatcher.remove(slot)

    def wait_until_ready(self, count: int) -> None:
        """Wait until `count` replicas are up; when the time is over, one is enough.

        Raises:
            DefinitionError: the component cannot be loaded.
            TransportError: no replica came up in time.
        """
        deadline = time.monotonic() + self._startup_timeout_s
        while True:
            if self._supervisor.failure is not None:
                raise self._supervisor.failure
            up = self._dispatcher.up
            if up >= count:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        if not up:
            raise TransportError(
                f"No replica was ready within {self._startup_timeout_s:g} s. Pass a larger startup_timeout, "
                "or ask for resources that the cluster has.",
                code="pool_unavailable",
            )
        _log.warning("%s: %d of %d replicas are up; others may follow", self.place, up, count)

    def _lease(
        self, endpoint: str, point: bytes | None, last: str | None, ticket: Ticket
    ) -> AbstractContextManager[Slot]:
        """A replica for a call.

        After one death the call runs alone on a replica: if that dies too, this call is the cause.
        """
        return self._dispatcher.lease(
            prefer=None if last else self._home(endpoint, point),
            insists=endpoint in self._supervisor.residual_endpoints,
            alone=last is not None,
            ticket=ticket,
        )

    def _check_repeat(
        self, error: ReplicaLostError, endpoint: str, deaths: int, since: float, ticket: Ticket
    ) -> None:
        """Raise if the call must not be repeated."""
        if error.never_began:
            return
        if not error.may_repeat or ticket.is_cancelled:
            raise error
        if not self._idempotent:
            raise ReplicaLostError(
                f"The replica that was computing {endpoint} died. The call was not repeated, because "
                "this pool was deployed with idempotent=False.",
                details=error.details,
            ) from error
        if deaths >= self._max_deaths:
            raise InputError(
                f"{deaths} replicas died while they computed {endpoint} for this input, the last of them "
                "with no other call. The input is not tried again; the pool goes on.",
                code="poison_input",
                details=error.details | {"deaths": deaths},
            ) from error

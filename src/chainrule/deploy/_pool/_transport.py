"""A pool as a transport: every call is answered by some replica, even when others die."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import xxhash
from pydantic import BaseModel

from chainrule._errors import InputError, TransportError
from chainrule._lru_cache import LRUCache
from chainrule._trees import is_arraylike
from chainrule.client import Ticket, Transport
from chainrule.deploy._pool._dispatch import Dispatcher, Replica, ReplicaLostError, Slot
from chainrule.deploy._pool._supervision import Supervisor
from chainrule.runtime.internal import content_digest

FORWARD = frozenset({"apply"})
BACKWARD = frozenset({"vector_jacobian_product"})
_REMEMBERED = 4096


def fingerprint(tree: Any) -> bytes:
    """A digest of nested data: structure, values, and (a bounded sample of) the bytes of arrays."""
    arrays: list[np.ndarray] = []
    text = repr(_outline(tree, arrays))
    return xxhash.xxh3_128_digest(text.encode()) + content_digest(arrays)


def _outline(node: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(node, BaseModel):
        node = dict(node)
    if isinstance(node, Mapping):
        return {key: _outline(value, arrays) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_outline(item, arrays) for item in node]
    if is_arraylike(node):
        arrays.append(np.asarray(node))
        return "array"
    return node


class ForwardPasses:
    """Which replica ran the forward pass of which inputs. Safe between threads."""

    def __init__(self) -> None:
        self._homes: LRUCache[bytes, str] = LRUCache(_REMEMBERED)
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def home(self, endpoint: str, point: bytes | None) -> str | None:
        """The replica that a call should go to; `None` when any will do."""
        if endpoint not in BACKWARD or point is None:
            return None
        found = self._homes.get(point)
        with self._lock:
            self._hits += found is not None
            self._misses += found is None
        return found

    def note(self, endpoint: str, point: bytes | None, replica: str) -> None:
        """A replica has answered a call."""
        if endpoint in FORWARD and point is not None:
            self._homes.put(point, replica)

    def concerns(self, endpoint: str) -> bool:
        """Whether it matters where this endpoint runs."""
        return endpoint in FORWARD or endpoint in BACKWARD

    @property
    def counts(self) -> dict[str, int]:
        """How many gradients found their forward pass, and how many did not."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses}


_log = logging.getLogger(__name__)

_POLL_S = 0.02

T = TypeVar("T")


class PoolTransport(Transport):
    """Replicas of one component behind the interface of all transports; they go when it is closed or dropped.

    Args:
        place: where the pool is, for people.
        depth: calls that one replica may have at once.
        max_replicas: how many there will be at most.
        idempotent: calls may run twice; they are then repeated when a replica dies.
        max_deaths: after so many deaths of replicas, a call's input is held to be the cause.
        startup_timeout_s: how long callers wait while no replica is up.

    Attributes:
        is_closed: whether it takes no more calls.
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
        # A call that waits behind another one in a dead replica has not run, but nobody can tell.
        depth = depth if idempotent else 1
        self.place = place
        self.max_concurrency = max_replicas * depth
        self._idempotent = idempotent
        self._max_deaths = max_deaths
        self._startup_timeout_s = startup_timeout_s
        self._dispatcher = Dispatcher(depth, startup_timeout_s)
        self._forward_passes = ForwardPasses()
        self._supervisor = Supervisor(self._dispatcher)
        self._repeated = 0
        self.is_closed = False
        # At the end of the interpreter each replica goes by itself.
        weakref.finalize(self, self._supervisor.close_in_thread).atexit = False

    @property
    def known_document(self) -> dict[str, Any] | None:
        """The document that the first replica gave."""
        return self._supervisor.document

    def start(self) -> None:
        """Get ready for calls, if that was put off until the first of them."""

    def describe(self) -> dict[str, Any]:
        """The document that the first replica gave."""
        self.start()
        if self._supervisor.document is None:
            self.wait_until_ready(1)
        assert self._supervisor.document is not None, "a replica that is up has told it"
        return self._supervisor.document

    def health(self) -> dict[str, Any]:
        """`ok` while a replica is up, `degraded` while none is; and what `status` says."""
        self.start()
        return {"status": "ok" if self._dispatcher.up else "degraded", **self.status()}

    def status(self) -> dict[str, Any]:
        """Replicas and their states, calls that wait, calls that were repeated, gradients that went home."""
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

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have a replica answer, and another one if it dies.

        Raises:
            InputError: the request is at fault; `poison_input` when it kills every replica that tries.
            TransportError: no answer came; `replica_lost` when calls may not be repeated.
        """
        point = self._point(endpoint, payload)
        return self.attempt(
            endpoint,
            point,
            lambda replica: replica.call(endpoint, payload, run_id=run_id, ticket=ticket),
            ticket or Ticket(),
        )

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """Several calls in one message to one replica. If it dies, each of them is on its own."""
        self.start()
        ticket = ticket or Ticket()
        if self._idempotent:
            points = [self._point(endpoint, payload) for payload in payloads]
            try:
                with self._dispatcher.lease(ticket=ticket) as slot:
                    answers = self._ask(
                        slot, lambda replica: replica.call_many(endpoint, payloads, ticket=ticket)
                    )
                for point in points:
                    self._forward_passes.note(endpoint, point, slot.replica.id)
                return answers
            except ReplicaLostError:
                self._repeated += len(payloads)
            except TransportError as error:
                return [error] * len(payloads)
        return super().call_many(endpoint, payloads, ticket=ticket)

    def attempt(
        self, endpoint: str, point: bytes | None, ask: Callable[[Replica], T], ticket: Ticket
    ) -> T:
        """What `ask` gives for some replica.

        Args:
            endpoint: what is asked for.
            point: fingerprint of the inputs.
            ask: sends the call.
            ticket: by which the caller may give up.
        """
        self.start()
        deaths = 0
        while True:
            try:
                home = self._forward_passes.home(endpoint, point) if not deaths else None
                # Once a replica has died of it, a call runs alone: the next death is no one else's doing.
                with self._dispatcher.lease(prefer=home, alone=deaths > 0, ticket=ticket) as slot:
                    answer = self._ask(slot, ask)
                self._forward_passes.note(endpoint, point, slot.replica.id)
                return answer
            except ReplicaLostError as error:
                if error.never_began:
                    continue
                deaths += 1
                self._raise_final(error, endpoint, deaths, ticket)
                self._repeated += 1

    def close(self) -> None:
        """Let go of the replicas."""
        self.is_closed = True
        self._supervisor.close()

    def add_replica(self, replica: Replica) -> None:
        """Start one more replica, and keep it alive."""
        self._supervisor.add(replica)

    def remove_replica(self, slot: Slot) -> None:
        """Let a replica go once it has answered the calls it has."""
        self._dispatcher.remove(slot)

    def wait_until_ready(self, count: int) -> None:
        """Wait until some replicas are up; at the end of the time, one is enough.

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

    def depends_on_replica(self, endpoint: str) -> bool:
        """Whether it matters which replica answers an endpoint."""
        return self._supervisor.gives_gradients and self._forward_passes.concerns(endpoint)

    def _point(self, endpoint: str, payload: Mapping[str, Any]) -> bytes | None:
        return fingerprint(payload.get("inputs")) if self.depends_on_replica(endpoint) else None

    def _ask(self, slot: Slot, ask: Callable[[Replica], T]) -> T:
        try:
            return ask(slot.replica)
        except ReplicaLostError:
            self._dispatcher.mark_lost(slot)
            raise

    def _raise_final(
        self, error: ReplicaLostError, endpoint: str, deaths: int, ticket: Ticket
    ) -> None:
        """Raise if the call must not be repeated."""
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

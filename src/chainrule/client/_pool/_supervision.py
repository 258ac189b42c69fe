"""Who knows which replicas of a pool are up, and the one who starts them again when they die.

The threads that do so know the replicas but not the pool that sends them calls, so a pool that is no longer
referenced can be collected, and its replicas end with it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Any

from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule._errors import ChainruleError, DefinitionError
from chainrule.client._pool._dispatch import Dispatcher, Replica, Slot
from chainrule.runtime.internal import Document

_log = logging.getLogger(__name__)

# A replica that cannot be started is tried again after a time that doubles with each failure.
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 10.0
# A pool of which no replica has ever started gives up after this many failures, and says why.
_TRIES_TO_START = 3
# How long `close` waits for each replica to stop.
_STOP_WITHIN_S = 5.0


class Keeper(ABC):
    """Knows whether the replicas of a pool are up, and what they are copies of.

    Args:
        dispatcher: is told which replicas are up.

    Attributes:
        document: the OpenAPI document that the first replica gave; `None` before.
        gives_gradients: whether the component has a vector-Jacobian product.
        residual_endpoints: those that go on from what `apply` has kept, by the author's declaration.
        failure: why no replica can be started; `None` while one is up or may still come up.
        closed: set when the replicas have to end.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.document: dict[str, Any] | None = None
        self.gives_gradients = False
        self.residual_endpoints: frozenset[str] = frozenset()
        self.failure: Exception | None = None
        self.closed = threading.Event()
        self._dispatcher = dispatcher

    @abstractmethod
    def close(self) -> None:
        """End the replicas, or the connections to them."""

    def close_in_thread(self) -> None:
        """`close` on a thread of its own.

        The garbage collector calls this, in any thread: also in one that holds the dispatcher's lock, for
        which `close` would then wait for ever.
        """
        threading.Thread(target=self.close, name="chainrule-close", daemon=True).start()

    def _learn(self, document: dict[str, Any]) -> None:
        """What a replica says of the component; the first one decides."""
        self.document = self.document or document
        read = Document(document)
        self.gives_gradients = "vector_jacobian_product" in read.endpoints
        self.residual_endpoints = frozenset(
            name for name in DERIVATIVE_ENDPOINTS if read.capabilities[name].residuals
        )


class Supervisor(Keeper):
    """A thread for each replica: starts it, waits until a caller notices its death, and starts it again.

    The same thread starts a replica every time, and lives as long as the replica: a child process asks
    Linux to end it when its parent dies (`PR_SET_PDEATHSIG`), and "parent" there is the thread that made
    the child.

    Args:
        dispatcher: is told which replicas are up.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self._failed_starts = 0
        self._threads: set[threading.Thread] = set()

    def add(self, replica: Replica) -> None:
        """Start one more replica, and keep it alive."""
        slot = Slot(replica)
        self._dispatcher.add(slot)
        # `close` sets `closed` before it looks at the slots. So either it sees this slot, or we see `closed`.
        if self.closed.is_set():
            slot.is_leaving = True
        thread = threading.Thread(
            target=self._supervise, args=(slot,), name=f"chainrule-{replica.id}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """End the replicas, and wait a moment until they have ended."""
        self.closed.set()
        self._dispatcher.close()
        for slot in self._dispatcher.slots:
            slot.is_leaving = True
            slot.changed.set()
        for thread in list(self._threads):
            thread.join(_STOP_WITHIN_S)

    def _supervise(self, slot: Slot) -> None:
        failures = 0
        while not slot.is_leaving:
            try:
                document = slot.replica.start()
            except (ChainruleError, OSError) as error:
                failures += 1
                self._on_failed_start(error)
                # The pause ends early when the slot has to leave: `close` sets `changed` after `is_leaving`.
                slot.changed.wait(min(_FIRST_BACKOFF_S * 2**failures, _MAX_BACKOFF_S))
                continue
            failures = 0
            self._learn(document)
            self._dispatcher.mark_up(slot)
            # Set when the replica is lost or has to leave, also if that was before this line: an event stays
            # set. It is cleared only after the wait, and the state is read again after that, so no change is
            # missed.
            slot.changed.wait()
            slot.changed.clear()
        slot.replica.stop()
        self._threads.discard(threading.current_thread())

    def _on_failed_start(self, error: Exception) -> None:
        self._failed_starts += 1
        is_hopeless = isinstance(error, DefinitionError) or self._failed_starts >= _TRIES_TO_START
        if self.document is None and is_hopeless:
            self.failure = error
        elif not self.closed.is_set():
            _log.error("A replica could not be started: %s", error)

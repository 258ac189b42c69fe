"""Keeping replicas alive, by threads that know the replicas but not the pool that sends them calls.

So a pool that nobody holds any more can be collected, and takes its replicas along.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from chainrule._errors import ChainruleError, DefinitionError
from chainrule.deploy._pool._dispatch import Dispatcher, Slot
from chainrule.deploy._pool._replica import Replica
from chainrule.runtime.internal import endpoints_of

_log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 10.0
_TRIES_TO_START = 3
_LAST_WORD_S = 5.0


class Minders:
    """A thread for each replica: starts it, waits until somebody notices its death, and starts it again.

    One thread for all its lives, because Linux ends a child with the thread that made it.

    Args:
        dispatcher: that is told which replicas are up.

    Attributes:
        document: the OpenAPI document that the first replica gave; `None` before.
        gives_gradients: whether the component has a vector-Jacobian product.
        failure: why not a single replica can be started; `None` as long as there is hope.
        closed: set when the replicas are to go.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.document: dict[str, Any] | None = None
        self.gives_gradients = False
        self.failure: Exception | None = None
        self.closed = threading.Event()
        self._dispatcher = dispatcher
        self._failed_starts = 0
        self._threads: set[threading.Thread] = set()

    def add(self, replica: Replica) -> None:
        """Start one more replica, and keep it alive."""
        slot = Slot(replica)
        self._dispatcher.add(slot)
        if self.closed.is_set():  # just now, by another thread, which has not seen this one
            slot.is_leaving = True
        thread = threading.Thread(
            target=self._mind, args=(slot,), name=f"chainrule-{replica.id}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Let go of the replicas, and wait a moment until they are gone."""
        self.closed.set()
        self._dispatcher.close()
        for slot in self._dispatcher.slots:
            slot.is_leaving = True
            slot.changed.set()
        for thread in list(self._threads):
            thread.join(_LAST_WORD_S)

    def close_aside(self) -> None:
        """`close` on a thread of its own.

        For the garbage collector, which may run in any thread, also in one that holds a lock of ours.
        """
        threading.Thread(target=self.close, name="chainrule-close", daemon=True).start()

    def _mind(self, slot: Slot) -> None:
        failures = 0
        while not slot.is_leaving:
            try:
                document = slot.replica.start()
            except (ChainruleError, OSError) as error:
                failures += 1
                self._on_failed_start(error)
                slot.changed.wait(min(_FIRST_BACKOFF_S * 2**failures, _MAX_BACKOFF_S))
                continue
            failures = 0
            self.document = self.document or document
            self.gives_gradients = "vector_jacobian_product" in endpoints_of(document)
            self._dispatcher.mark_up(slot)
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

"""Which workers of a component are lent to whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from chainrule.serve._calls import CallError
from chainrule.serve._lease import Client, Lease, Lendable
from chainrule.serve._traffic import Traffic

if TYPE_CHECKING:
    from chainrule.serve._pool import Counters

__all__ = ["Lending"]

# Where callers of other kinds need the workers too, lending and calling back would cost more than it saves.
_QUIET_S = 0.01


class Lending:
    """The leases of one component's workers.

    Args:
        timeout_s: how long one call may take; `None` for ever.
        counters: of the component.
        traffic: of the component.
        on_lend: called with a worker that is about to be lent.
        on_return: called with a worker that has come back.
    """

    def __init__(
        self,
        *,
        timeout_s: float | None,
        counters: Counters,
        traffic: Traffic,
        on_lend: Callable[[Any], object],
        on_return: Callable[[Any], object],
    ) -> None:
        self._terms: dict[str, Any] = {
            "timeout_s": timeout_s, "counters": counters, "traffic": traffic,
        }  # fmt: skip
        self._on_lend = on_lend
        self._on_return = on_return
        self._leases: dict[Lendable, Lease] = {}
        self._clients: dict[int, Client] = {}
        self._wanted_at = -_QUIET_S

    @property
    def is_empty(self) -> bool:
        """Whether no worker is lent."""
        return not self._leases

    def lend_to(self, client: Client, free: Sequence[Lendable]) -> None:
        """Let a client talk to a worker itself: a free one, or one that is lent already.

        The clients that had one before get one too, or two of them would take turns in calling it back.
        """
        self._clients[client.number] = client
        if time.monotonic() - self._wanted_at < _QUIET_S:
            return
        lent = [worker for worker, lease in self._leases.items() if not lease.is_ending]
        workers = [*free, *lent]
        for each in self._clients.values() if workers else ():
            if each.is_lendable:
                self._lease_of(min(workers, key=self._client_count)).add(each)

    def _client_count(self, worker: Lendable) -> int:
        return self._leases[worker].client_count if worker in self._leases else 0

    def _lease_of(self, worker: Lendable) -> Lease:
        if worker not in self._leases:
            self._on_lend(worker)
            lease = Lease(worker, **self._terms, on_end=self._on_end)
            worker.lease = self._leases[worker] = lease
        return self._leases[worker]

    def _on_end(self, lease: Lease) -> None:
        del self._leases[lease.worker]
        lease.worker.lease = None
        self._on_return(lease.worker)

    def call_one_back(self) -> None:
        """Want one worker back, for a call that would wait otherwise."""
        lent = [lease for lease in self._leases.values() if not lease.is_ending]
        if lent:
            self._wanted_at = time.monotonic()
            min(lent, key=lambda lease: lease.client_count).end()

    def call_all_back(self) -> None:
        """Want all workers back."""
        if self._leases:
            self._wanted_at = time.monotonic()
        for lease in self._leases.values():
            lease.end()

    def lost(self, worker: Lendable, error: CallError) -> CallError | None:
        """A worker has died.

        Returns:
            What the client was told whose call it took along, if there is one.
        """
        lease = self._leases.pop(worker, None)
        return None if lease is None else lease.lost(error)

    def forget(self, number: int) -> None:
        """A client has left."""
        self._clients.pop(number, None)

"""The pool of processes: how many there are follows the load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from chainrule.client import Transport
from chainrule.deploy._pool import Autoscaler, Dispatcher, Minders, PoolTransport
from chainrule.deploy.local._replica import ProcessReplica

_SCALE_EVERY_S = 0.2


class ProcessPool(PoolTransport):
    """Processes of this machine, started and ended here.

    Args:
        spawn: starts a process and loads the component in it.
        minimum: processes that always stay.
        maximum: processes there are at most.
        **settings: of `PoolTransport`.
    """

    def __init__(
        self, spawn: Callable[[], Transport], minimum: int, maximum: int, **settings: Any
    ) -> None:
        size = str(maximum) if minimum == maximum else f"{minimum} to {maximum}"
        super().__init__(f"processes of a pool, {size}", depth=1, max_replicas=maximum, **settings)
        try:
            for _ in range(minimum):
                self.add_replica(ProcessReplica(spawn))
            self.wait_until_ready(minimum)
        except BaseException:
            self.close()
            raise
        if minimum < maximum:
            scaler = Autoscaler(minimum, maximum)
            threading.Thread(
                target=_scale,
                args=(scaler, self._minders, self._dispatcher, spawn),
                name="chainrule-autoscale",
                daemon=True,
            ).start()


def _scale(
    scaler: Autoscaler, minders: Minders, dispatcher: Dispatcher, spawn: Callable[[], Transport]
) -> None:
    """Follow the load until the pool is closed. It does not know the pool, and does not keep it alive."""
    while not minders.closed.wait(_SCALE_EVERY_S):
        staying = [slot for slot in dispatcher.slots if not slot.is_leaving]
        target = scaler.target(len(staying), dispatcher.load)
        for _ in range(target - len(staying)):
            minders.add(ProcessReplica(spawn))
        for slot in sorted(staying, key=lambda slot: slot.in_flight)[: len(staying) - target]:
            dispatcher.remove(slot)

"""A pool of processes on this machine, with arrays in shared memory: the choice where one machine is enough.

deploy   a handle with the whole client interface, whose calls run in several processes
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chainrule._errors import ChainruleError, DefinitionError, TransportError
from chainrule._processors import processors
from chainrule.client import Component, Ticket, Transport
from chainrule.client.internal import (
    Dispatcher,
    PoolTransport,
    Replica,
    ReplicaLostError,
    SubprocessTransport,
    Supervisor,
)
from chainrule.deploy._scaling import Autoscaler, check_size
from chainrule.runtime import ComponentConfig

__all__ = ["deploy"]

_SCALE_EVERY_S = 0.2
_numbers = itertools.count()


def deploy(
    component: str | Path | Any,
    *,
    replicas: int | None = None,
    autoscale: tuple[int, int] | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
    timeout: float | None = None,
    startup_timeout: float = 60.0,
    idempotent: bool = True,
    max_deaths: int = 3,
    python: str | Path | None = None,
) -> Component:
    """Start processes that answer calls of a component in parallel, and are replaced when they crash.

    Args:
        component: path of the module file or its folder, or a function that can be pickled.
        replicas: number of processes; one per available processor when not given.
        autoscale: least and greatest number of processes instead; more are started while calls wait.
        config: settings of the component.
        timeout: seconds that a call may take; a call that takes longer ends its process.
        startup_timeout: seconds that loading the component may take.
        idempotent: calls may run twice; they are repeated when their process dies.
        max_deaths: a call that this many processes died of is refused (`poison_input`).
        python: the interpreter to use instead of this one.

    Returns:
        A handle like any other; the processes end when it is closed or garbage-collected.

    Raises:
        DefinitionError: the component cannot be loaded.
        InputError: the size of the pool or the settings are not possible.
    """
    size = processors() if replicas is None else replicas
    minimum, maximum = check_size(size, autoscale)
    settings = ComponentConfig.make(config)
    source = str(Path(component).resolve()) if isinstance(component, (str, Path)) else component
    _check_source(source)

    def spawn() -> SubprocessTransport:
        return SubprocessTransport(
            source,
            config=settings,
            python=None if python is None else str(python),
            startup_timeout=startup_timeout,
            timeout=timeout,
        )

    pool = ProcessPool(
        spawn,
        minimum,
        maximum,
        idempotent=idempotent,
        max_deaths=max_deaths,
        startup_timeout_s=startup_timeout,
    )
    return Component(pool)


def _check_source(source: Any) -> None:
    try:
        pickle.dumps(source)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise DefinitionError(
            f"A process cannot be given this {type(source).__name__}. Deploy a path such as component.py or "
            "component.py:name, or a function of an importable module.",
            code="not_picklable",
        ) from None


class ProcessPool(PoolTransport):
    """Processes of this machine, started and ended here.

    Args:
        spawn: starts a process and loads the component in it.
        minimum: the least number of processes.
        maximum: the greatest number of processes.
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
                args=(scaler, self._supervisor, self._dispatcher, spawn),
                name="chainrule-autoscale",
                daemon=True,
            ).start()


def _scale(
    scaler: Autoscaler,
    supervisor: Supervisor,
    dispatcher: Dispatcher,
    spawn: Callable[[], Transport],
) -> None:
    """Follow the load until the pool is closed. Holds no reference to the pool, so that it can be
    collected."""
    while not supervisor.closed.wait(_SCALE_EVERY_S):
        staying = [slot for slot in dispatcher.slots if not slot.is_leaving]
        target = scaler.target(len(staying), dispatcher.load)
        for _ in range(target - len(staying)):
            supervisor.add(ProcessReplica(spawn))
        # Those without a call first: they leave at once, and no other one has to wait for its call to end.
        for slot in sorted(staying, key=lambda slot: slot.in_flight)[: len(staying) - target]:
            dispatcher.remove(slot)


class ProcessReplica(Replica):
    """A child process with the component.

    Args:
        spawn: starts a process and loads the component in it.
    """

    def __init__(self, spawn: Callable[[], Transport]) -> None:
        self.id = f"process-{next(_numbers)}"
        self._spawn = spawn
        self._transport: Transport | None = None

    def start(self) -> dict[str, Any]:
        """A new process, in place of the one before."""
        self.stop()
        self._transport = self._spawn()
        return self._transport.describe()

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Have the process answer."""
        transport = self._transport
        if transport is None or transport.health()["status"] != "ok":
            # It ended between two calls. Only its supervisor's thread may start it again; see `Supervisor`.
            raise ReplicaLostError("The process ended before the call.", never_began=True)
        try:
            return transport.call(endpoint, payload, run_id=run_id, ticket=ticket)
        except TransportError as error:
            if error.code == "worker_crashed":
                raise ReplicaLostError(error.message, details=error.details) from error
            is_over = error.code == "cancelled" and transport.health()["status"] != "ok"
            if is_over or error.code == "call_timeout":
                raise ReplicaLostError(error.message, code=error.code, may_repeat=False) from error
            raise

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """One after the other: a message to a process takes too little time to be shared."""
        answers: list[Any] = []
        for payload in payloads:
            try:
                answers.append(self.call(endpoint, payload, ticket=ticket))
            except ReplicaLostError:
                raise
            except ChainruleError as error:
                answers.append(error)
        return answers

    def stop(self) -> None:
        """End the process."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

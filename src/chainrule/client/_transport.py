"""How a component is reached: the interface of all transports, and the transport within this process.

A transport carries payloads (plain trees with NumPy arrays) to endpoints and brings results back, or raises
the same exceptions that a component in this process would raise. `Component` knows nothing else of it.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainrule._device import DeviceLibrary
from chainrule._errors import CapabilityError, ChainruleError, InputError
from chainrule._tracing import span
from chainrule.runtime import ComponentConfig, LocalComponent, load_component

if TYPE_CHECKING:
    from chainrule.client._jobs import Job


class Ticket:
    """Lets another thread cancel a call that is under way.

    Args:
        patience_s: how long a call that a server turns away, because it has too many, comes back; at least
            as often as the transport repeats any call.

    Attributes:
        is_cancelled: whether the caller has cancelled the call.
    """

    def __init__(self, patience_s: float = 0.0) -> None:
        self.patience_s = patience_s
        self.is_cancelled = False
        # Of `_abort`. It is not held while `abort` runs, which may take locks of its own.
        self._lock = threading.Lock()
        self._abort: Callable[[], Any] | None = None

    def pause(self, seconds: float) -> None:
        """Sleep until the time is over or the call is cancelled."""
        # Made here, not with every ticket: it costs more than all the rest of one.
        woken = threading.Event()
        self.when_cancelled(woken.set)
        woken.wait(seconds)
        self.when_cancelled(None)

    def when_cancelled(self, abort: Callable[[], Any] | None) -> None:
        """Set what interrupts the call at its present stage; `None` when nothing can."""
        with self._lock:
            self._abort = abort
        if self.is_cancelled and abort is not None:
            abort()

    # The race of `cancel` and `when_cancelled`: one thread sets `is_cancelled` and then reads `_abort`, the
    # other sets `_abort` and then reads `is_cancelled`. So at least one of them sees what the other has set,
    # and the call is interrupted. Both may see it: `abort` may be called twice.

    def cancel(self) -> None:
        """Cancel the call."""
        self.is_cancelled = True
        with self._lock:
            abort = self._abort
        if abort is not None:
            abort()


class Caller(ABC):
    """What makes calls of endpoints: a transport, or one replica of a pool. Safe between threads."""

    @abstractmethod
    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """The answer of an endpoint.

        Args:
            endpoint: its name.
            payload: the whole request.
            run_id: the id by which files of this call are known.
            ticket: with which the caller may cancel the call.

        Raises:
            InputError: the request is at fault.
            CapabilityError: the component has no such endpoint.
            ComponentError: the component is at fault.
            TransportError: no answer came.
        """

    @abstractmethod
    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """The answers of several calls, each a result or the `ChainruleError` of that call."""


class Transport(Caller):
    """A way to a component.

    Attributes:
        place: where the component is, for people.
        max_concurrency: how many calls may be under way at once.
        max_group: how many calls are sent in one message at most.
        local: the component itself when it is in this process.
    """

    place: str
    max_concurrency: int = 1
    max_group: int = 1
    local: LocalComponent | None = None

    @property
    def known_document(self) -> dict[str, Any] | None:
        """The OpenAPI document as far as it is known without a request."""
        return None

    @property
    def known_state(self) -> str:
        """Lines about how it is there now, as far as that is known without a request."""
        return ""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The OpenAPI document of the component.

        Raises:
            TransportError: the component cannot be reached.
        """

    def group_size(self) -> int:
        """How many calls are best sent in one message now."""
        return 1

    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """One call after the other."""
        answers: list[Any] = []
        for payload in payloads:
            try:
                answers.append(self.call(endpoint, payload, ticket=ticket))
            except ChainruleError as error:
                answers.append(error)
        return answers

    def submit(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job | None:
        """Have a call taken on as a job that needs no connection; `None` where there is no such thing."""
        return None

    def job(self, job_id: str) -> Job:
        """A job that was taken on before.

        Raises:
            CapabilityError: there is no such job, or there are no jobs here.
        """
        raise CapabilityError(
            f"Only a server of Chainrule keeps jobs, see Component.from_url; this component is "
            f"{self.place}.",
            code="job_unknown",
        )

    def device_library(self) -> DeviceLibrary | None:
        """What holds arrays on a GPU that are exchanged with the component without the host's memory."""
        return None

    def mean_seconds(self) -> dict[str, float]:
        """Endpoint → mean seconds of the calls that were answered there so far, for all callers."""
        return {}

    @abstractmethod
    def health(self) -> dict[str, Any]:
        """What the component says of its health."""

    @abstractmethod
    def close(self) -> None:
        """Close connections and end processes."""


class InProcessTransport(Transport):
    """Calls a component of this process; nothing is encoded. Arrays are copied, each way once.

    Args:
        component: the component.
        source: what it was loaded from, as `load_component` takes it.
    """

    place = "in this process"

    def __init__(self, component: LocalComponent, source: Any = None) -> None:
        self.local: LocalComponent = component
        self._source = os.path.abspath(source) if isinstance(source, (str, Path)) else source

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle that is sent to another process loads the component there.
        source = self.local if self._source is None else self._source
        return _load, (source, self.local.config)

    @property
    def known_document(self) -> dict[str, Any]:
        """The component's own document."""
        return self.local.openapi_schema

    def describe(self) -> dict[str, Any]:
        """The component's own document."""
        return self.local.openapi_schema

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Call the endpoint in the calling thread; it cannot be interrupted."""
        with span(f"{self.local.name} {endpoint}", kind="INTERNAL"):
            return self.local.call(endpoint, payload, run_id=run_id)

    def health(self) -> dict[str, Any]:
        """Always `ok`."""
        return dict(self.local.health())

    def close(self) -> None:
        """Nothing to close."""


def _load(source: Any, config: ComponentConfig) -> InProcessTransport:
    return InProcessTransport(load_component(source, config=config), source)


def check_seconds(name: str, value: float | None) -> None:
    """Check a time to wait, in seconds; `None` means no limit.

    Raises:
        InputError: it is not a number above zero (`bad_option`).
    """
    if value is None:
        return
    if not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise InputError(
            f"{name} must be a number of seconds above 0, or None; found {value!r}.",
            code="bad_option",
        )


def check_count(name: str, value: int, *, least: int) -> None:
    """Check a number of things.

    Raises:
        InputError: it is not a whole number, or less than `least` (`bad_option`).
    """
    if not isinstance(value, Integral) or value < least:
        raise InputError(
            f"{name} must be a whole number, at least {least}; found {value!r}.", code="bad_option"
        )

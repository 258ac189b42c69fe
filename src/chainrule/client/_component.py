"""`Component`: the one handle to a component, wherever it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from chainrule._describe import describe_value
from chainrule._endpoints import AsyncEndpointMethods, EndpointMethods
from chainrule._errors import CapabilityError, ChainruleError, InputError, TransportError
from chainrule.client._constructors import Constructors
from chainrule.client._jobs import CallJob, Job
from chainrule.client._mapping import Outcome, check_many, results_of, stream_outcomes
from chainrule.client._payloads import (
    explained,
    send_one_by_one,
    takes_batches,
)
from chainrule.client._transport import Ticket, Transport, check_count
from chainrule.runtime import ArraySpec, Capability, LocalComponent
from chainrule.runtime.internal import Document


class Component(Constructors, EndpointMethods, AsyncEndpointMethods):
    """A component: in this process, in a process of its own, behind a URL, or a pool of replicas.

    Made by `from_api`, `from_source`, `from_url`, `from_image` or `from_cluster`. Inputs and results are
    plain trees, nested dicts and lists of NumPy arrays and JSON values, and errors are the same exceptions
    with every transport.

    Args:
        transport: the way to the component.

    Example:
        >>> def double(x: float) -> float:
        ...     return 2 * x
        >>> Component.from_api(double).apply({"x": 3.0})
        {'result': 6.0}
    """

    def __init__(self, transport: Transport) -> None:
        if not isinstance(transport, Transport):
            raise InputError(
                f"Component(…) takes a transport; found {describe_value(transport)}. "
                "Component.from_source(path), Component.from_api(path or function) and "
                "Component.from_url(url) make components.",
                code="not_a_transport",
            )
        super().__init__(transport)
        # Guards `_executor`. It is not held while the executor shuts down, which waits for calls.
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._is_closed = False

    # What it is

    @cached_property
    def openapi_schema(self) -> dict[str, Any]:
        """The OpenAPI document; asked for once."""
        return self.transport.describe()

    @cached_property
    def _document(self) -> Document:
        return Document(self.openapi_schema)

    @property
    def name(self) -> str:
        """Name of the component."""
        return self.openapi_schema["info"]["title"]

    @property
    def version(self) -> str:
        """Version of the component."""
        return self.openapi_schema["info"]["version"]

    @property
    def description(self) -> str:
        """Prose for people."""
        return self.openapi_schema["info"].get("description", "")

    @cached_property
    def available_endpoints(self) -> list[str]:
        """Names of the endpoints that can be called."""
        return self._document.endpoints

    @cached_property
    def capabilities(self) -> Mapping[str, Capability]:
        """How each endpoint is available: native, derived and from what, or absent."""
        return self._document.capabilities

    @cached_property
    def differentiable_inputs(self) -> Mapping[str, ArraySpec]:
        """Path pattern → declaration of every differentiable input."""
        return self._document.differentiable("inputs")

    @cached_property
    def differentiable_outputs(self) -> Mapping[str, ArraySpec]:
        """Path pattern → declaration of every differentiable output."""
        return self._document.differentiable("outputs")

    @property
    def batching(self) -> str | None:
        """How the author says the component treats extra leading axes."""
        return self.openapi_schema.get("x-batching")

    @property
    def prices(self) -> Mapping[str, float]:
        """What the author says that calls cost."""
        return self.openapi_schema.get("x-prices", {})

    def output_units(self) -> Mapping[str, str]:
        """Path pattern → units of the outputs that have some."""
        return self._document.units("outputs")

    @property
    def sparsity(self) -> Mapping[str, Mapping[str, Any]]:
        """Which elements of the outputs depend on which elements of the inputs, where that is declared."""
        return self.openapi_schema.get("x-sparsity", {})

    @property
    def local(self) -> LocalComponent | None:
        """The component itself when it is in this process."""
        return self.transport.local

    @property
    def jax_function(self) -> Any:
        """The traceable function of a component in this process, for inlining; `None` otherwise."""
        return None if self.local is None else self.local.jax_function

    @property
    def max_concurrency(self) -> int:
        """How many calls may be under way at once."""
        return self.transport.max_concurrency

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.transport,)

    def __repr__(self) -> str:
        # A repr does not open connections: it shows what is known already.
        document = self.transport.known_document
        if document is None:
            return f"<Component at {self.transport.place}>"
        return Document(document).summary(self.transport.place)

    def _repr_html_(self) -> str | None:
        try:
            return self._document.summary_html(self.transport.place)
        except ChainruleError:  # unreachable, or closed to us: the other repr says where it is
            return None

    # What it does

    def health(self) -> dict[str, Any]:
        """What the component says of its health."""
        self._check_open()
        return self.transport.health()

    async def health_async(self) -> dict[str, Any]:
        """`health`, to be awaited: What the component says of its health."""
        return await self.start_call("health", {})

    def mean_seconds(self) -> dict[str, float]:
        """Endpoint → mean seconds of the requests that the server of this component has answered so far.

        They are those of its `/metrics`, for all callers, from the queue to the answer. Empty where there is
        no such server.
        """
        self._check_open()
        return self.transport.mean_seconds()

    def call(self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None) -> Any:
        """The answer of an endpoint to a whole request, as it would be sent.

        Args:
            endpoint: name of the endpoint.
            payload: the request, `{"inputs": …}` and what else the endpoint takes; arrays encoded or not.
            run_id: as in `apply`.
        """
        self._check_endpoint(endpoint)
        return (
            self.health() if endpoint == "health" else self._send(endpoint, payload, run_id=run_id)
        )

    def submit(self, endpoint: str, *args: Any, **kwargs: Any) -> Job:
        """Start a call and return at once.

        A server keeps the call as a job of its own: it goes on when this process ends, and is found again by
        its id (`job`).

        Args:
            endpoint: name of the endpoint.
            *args: the arguments of the method of this name.
            **kwargs: likewise.

        Raises:
            CapabilityError: the component has no such endpoint.

        Example:
            >>> def double(x: float) -> float:
            ...     return 2 * x
            >>> Component.from_api(double).submit("apply", {"x": 3.0}).result()
            {'result': 6.0}
        """
        self._check_endpoint(endpoint)
        if endpoint == "health":
            return self.start_call(endpoint, {})
        return getattr(EndpointMethods.calling(self._submit), endpoint)(*args, **kwargs)

    def _submit(
        self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None
    ) -> Job:
        """Let the server keep the call as a job; start it on a thread where the server does not."""
        job = None
        if not payload.get("batched") or takes_batches(self.openapi_schema, endpoint):
            try:
                job = self.transport.submit(endpoint, payload, run_id=run_id)
            except TypeError as error:
                raise explained(error, payload) from error.__cause__
        return job or self.start_call(endpoint, payload, run_id=run_id)

    def job(self, job_id: str) -> Job:
        """A job that the server of this component has taken on before, perhaps for another process.

        Raises:
            CapabilityError: there is no such job (`job_unknown`).
        """
        self._check_open()
        return self.transport.job(job_id)

    def start_call(
        self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None
    ) -> Job:
        """Start a call on a thread of this process; arguments as in `call`."""
        self._check_endpoint(endpoint)

        def send(ticket: Ticket) -> Any:
            if endpoint == "health":
                return self.transport.health()
            return self._send(endpoint, payload, run_id=run_id, ticket=ticket)

        return CallJob(self._workers(), send, endpoint)

    def map(
        self,
        inputs: Iterable[Any],
        *,
        max_in_flight: int | None = None,
        ordered: bool = True,
        progress: bool = False,
    ) -> Iterator[Any]:
        """`apply` over many inputs; the first failure is raised.

        Args:
            inputs: taken one by one, when there is room.
            max_in_flight: how many inputs are under way at once; what the transport can do when not given.
            ordered: give results in the order of the inputs; otherwise as they come.
            progress: show a progress bar.
        """
        outcomes = self.map_outcomes(
            inputs, max_in_flight=max_in_flight, ordered=ordered, progress=progress
        )
        return results_of(outcomes)

    def map_outcomes(
        self,
        inputs: Iterable[Any],
        *,
        max_in_flight: int | None = None,
        ordered: bool = False,
        progress: bool = False,
    ) -> Generator[Outcome, None, None]:
        """`apply` over many inputs, one outcome for each: an input that fails costs only its own result.

        Args:
            inputs: as in `map`.
            max_in_flight: as in `map`.
            ordered: give outcomes in the order of the inputs; otherwise as they come, with their `index`.
            progress: show a progress bar.

        Example:
            >>> def root(x: float) -> float:
            ...     return x**0.5 if x >= 0 else 1 / 0
            >>> found = Component.from_api(root).map_outcomes([{"x": 4.0}, {"x": -1.0}], ordered=True)
            >>> [outcome.error.code if outcome.error else outcome.result for outcome in found]
            [{'result': 2.0}, 'component_failed']
        """
        check_many(inputs)
        if max_in_flight is not None:
            check_count("max_in_flight", max_in_flight, least=1)
        self._check_endpoint("apply")

        def send_many(items: Sequence[Any], ticket: Ticket) -> Sequence[Any]:
            payloads = [{"inputs": item} for item in items]
            return self.transport.call_many("apply", payloads, ticket=ticket)

        transport = self.transport
        limit = max_in_flight or self.max_concurrency * transport.max_group
        largest = max(1, limit // self.max_concurrency)
        return stream_outcomes(
            send_many,
            inputs,
            executor=self._workers(),
            max_in_flight=limit,
            group_size=lambda: min(transport.group_size(), largest),
            ordered=ordered,
            progress=progress,
            label="apply",
        )

    # Its end

    def close(self) -> None:
        """Close connections and end processes; calls that are under way finish first."""
        self._is_closed = True
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        def send(payload: Mapping[str, Any]) -> Any:
            try:
                return self.transport.call(endpoint, payload, run_id=run_id, ticket=ticket)
            except TypeError as error:
                raise explained(error, payload) from error.__cause__

        if payload.get("batched") and not takes_batches(self.openapi_schema, endpoint):
            return send_one_by_one(send, endpoint, payload)
        return send(payload)

    def _check_endpoint(self, endpoint: str) -> None:
        self._check_open()
        if endpoint not in self.available_endpoints:
            raise CapabilityError(
                f"{self.name} has no endpoint {endpoint!r}; it has "
                f"{', '.join(self.available_endpoints)}.",
                code="endpoint_missing",
                details={"endpoint": endpoint, "available": self.available_endpoints},
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportError("This component has been closed.", code="closed")

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None or self._pid != os.getpid():
                # After a fork the threads are the parent's: no thread of this process would take a call.
                self._pid = os.getpid()
                self._executor = ThreadPoolExecutor(
                    self.max_concurrency, thread_name_prefix="chainrule-client"
                )
            return self._executor

"""`Component`: the one handle to a component, wherever it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, Self

from chainrule._describe import describe_value
from chainrule._endpoints import AsyncEndpointMethods, EndpointMethods, endpoint_missing
from chainrule._errors import (
    ChainruleError,
    DefinitionError,
    InputError,
    TransportError,
)
from chainrule._registry import provided
from chainrule._results import Result
from chainrule.client._bodies import (
    explained,
    send_one_by_one,
    takes_batches,
)
from chainrule.client._connections import MAX_ANSWER_BYTES, Verify
from chainrule.client._jobs import CallJob, Job
from chainrule.client._mapping import Outcome, check_many, results_of, stream_outcomes
from chainrule.client._server import ServerJob
from chainrule.client._transport import InProcessTransport, Ticket, Transport, check_count
from chainrule.runtime import ArraySpec, Capability, ComponentConfig, LocalComponent, load_component
from chainrule.runtime.internal import Document


class Component(EndpointMethods, AsyncEndpointMethods):
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
        self.transport = transport
        # Guards `_executor`. It is not held while the executor shuts down, which waits for calls.
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._is_closed = False

    # Where it may be: what needs another package, or much code, is imported when it is asked for

    @classmethod
    def from_api(
        cls,
        source: str | Path | ModuleType | LocalComponent | Any,
        *,
        config: ComponentConfig | Mapping[str, Any] | None = None,
    ) -> Self:
        """A component in this process.

        Args:
            source: a path to a module file or its folder, an imported module, a function with annotated
                arguments, or a component.
            config: settings of the component.

        Raises:
            DefinitionError: the source is not a complete component.
        """
        _check_no_url(source)
        component = load_component(source, config=config)
        return cls(InProcessTransport(component, source))

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        resolve: Literal["dns"] | Callable[[str, int], Iterable[str]] | None = None,
        resolve_every: float = 30.0,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        timeout: float | None = None,
        retries: int = 2,
        idempotent: bool | Literal["key"] = False,
        share_memory: bool = True,
        verify: Verify = True,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        startup_timeout: float = 10.0,
    ) -> Self:
        """A component that is served somewhere, by Chainrule or by a Tesseract. Nothing is sent yet.

        Args:
            url: `http://host:port`, with the path of the component where a server has several.
            resolve: `"dns"` when the name in the URL stands for several servers: each of its addresses is
                one, and calls go to any of them, as with `from_urls`. A function `(host, port) -> addresses`
                takes the place of DNS.
            resolve_every: seconds after which the addresses are asked for again; they are also after a server
                was lost.
            token: by which the server knows you.
            token_file: a file with the token, in its place. When the server refuses the token, the file is
                read again and the request repeated once, so that a token can be changed while you work.
            timeout: seconds that a call may take, from the connection to the last byte of its answer; `None`
                waits forever.
            retries: how often a call is repeated when it certainly has not run: the connection could not be
                made or broke while the request was sent, or the server turned it away with `Retry-After`.
            idempotent: `True`: calls may run twice; they are then repeated also when the connection broke
                later. `"key"`: they may not; they are repeated with an `Idempotency-Key`, by which a server
                of Chainrule knows them, as long as it has its jobs. Each is a job, which costs the server a
                write to its disk.
            share_memory: let arrays go through shared memory when the server is on this host.
            verify: how certificates of `https` are checked: a PEM file of authorities to trust, or an
                `ssl.SSLContext`; `False` trusts any.
            max_answer_bytes: of one answer, as it is received and as it is decoded; a larger one is refused
                before it is read (`answer_too_large`).
            startup_timeout: seconds that a call waits while none of several servers is up.

        Raises:
            InputError: the URL is not one (`bad_url`), an option makes no sense (`bad_option`), or the token
                file cannot be used (`bad_token_file`).
        """
        settings: dict[str, Any] = {
            "token": token, "token_file": token_file, "timeout": timeout, "retries": retries,
            "idempotent": idempotent, "share_memory": share_memory, "verify": verify,
            "max_answer_bytes": max_answer_bytes,
        }  # fmt: skip
        if resolve is None:
            from chainrule.client._http import HttpTransport

            return cls(HttpTransport(url, **settings))
        from chainrule.client._servers import ServerOptions, ServersTransport, check_resolve

        options = ServerOptions(**settings, startup_timeout=startup_timeout)
        return cls(ServersTransport([url], options, check_resolve(resolve), resolve_every))

    @classmethod
    def from_urls(
        cls,
        urls: Sequence[str],
        *,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        timeout: float | None = None,
        retries: int = 2,
        idempotent: bool | Literal["key"] = False,
        share_memory: bool = True,
        verify: Verify = True,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        startup_timeout: float = 10.0,
    ) -> Self:
        """A component that several servers have: each call goes to one of them. Nothing is sent yet.

        Of two servers, taken at random, the one with fewer calls of this handle gets the next call. A
        gradient goes to the server that ran its forward pass, unless that has no room. A server that fails,
        or cannot be reached, gets no calls until it is ready again.

        Args:
            urls: of the servers, as in `from_url`. All must serve the same component with the same interface.
            token: as in `from_url`, for each of the servers.
            token_file: as in `from_url`.
            timeout: as in `from_url`; a call that is sent to another server has the whole time again.
            retries: as in `from_url`; what certainly has not run goes to another server at once.
            idempotent: as in `from_url`; with `True`, calls whose server is lost are repeated at another
                one. With `"key"` they are repeated at a server that has the same jobs: the same one, once it
                is back, or one with the same `--jobs postgresql://…`.
            share_memory: as in `from_url`.
            verify: as in `from_url`.
            max_answer_bytes: as in `from_url`.
            startup_timeout: seconds that a call waits while no server is up or, with a key, for a server
                that knows it.

        Raises:
            InputError: a URL is not one (`bad_url`), or an option makes no sense (`bad_option`). The first
                use raises `other_component` when two servers have different components.
        """
        from chainrule.client._servers import ServerOptions, ServersTransport

        options = ServerOptions(
            token=token,
            token_file=token_file,
            timeout=timeout,
            retries=retries,
            idempotent=idempotent,
            share_memory=share_memory,
            verify=verify,
            max_answer_bytes=max_answer_bytes,
            startup_timeout=startup_timeout,
        )
        return cls(ServersTransport(urls, options))

    @classmethod
    def from_umbridge(
        cls,
        url: str,
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        derivatives: Literal["server", "finite"] = "server",
        timeout: float | None = None,
        verify: Verify = True,
        max_answer_bytes: int = 1 << 30,
    ) -> Self:
        """A model behind a UM-Bridge server, with the derivatives that it offers.

        Its vectors are the inputs `input_0`, … and the outputs `output_0`, …, or have the names that a server
        of ours tells. The input `config` is handed to the model as it is.

        Args:
            url: of the server.
            name: of the model; needed when the server has several.
            config: for which sizes are asked, and the default of the input `config`.
            derivatives: those that the model offers, or finite differences of its values.
            timeout: seconds that a request may take; `None` waits forever.
            verify: as in `from_url`.
            max_answer_bytes: of one answer; a longer one is refused.

        Raises:
            CapabilityError: the server has no such model (`model_unknown`).
            TransportError: it cannot be reached, is no UM-Bridge server (`not_umbridge`), or
                answers with too much (`answer_too_large`).
        """
        from chainrule.client._umbridge import component_of_model

        model = component_of_model(
            url,
            name,
            config=config,
            derivatives=derivatives,
            timeout=timeout,
            verify=verify,
            max_answer_bytes=max_answer_bytes,
        )
        return cls.from_api(model)

    @classmethod
    def from_source(
        cls,
        path: str | Path,
        *,
        config: ComponentConfig | Mapping[str, Any] | None = None,
        environment: bool | str | Path = False,
        python: str | Path | None = None,
        startup_timeout: float = 60.0,
        timeout: float | None = None,
    ) -> Self:
        """A component in a process of its own, which ends with this object or this process.

        Args:
            path: of the module file or its folder.
            config: settings of the component.
            environment: give the process a virtual environment with the component's own requirements:
                `True` for one beside the component, or a folder for it.
            python: the interpreter to use instead.
            startup_timeout: seconds that loading the component may take.
            timeout: seconds that a call may take; a call that takes longer ends the process.

        Raises:
            DefinitionError: the component cannot be loaded.
            TransportError: the process ended or did not start in time.
        """
        from chainrule.client._environment import ensure_environment
        from chainrule.client._subprocess import SubprocessTransport

        _check_no_url(path)
        source = Path(path).resolve()
        if environment:
            folder = None if environment is True else Path(environment)
            python = ensure_environment(source, folder)
        return cls(
            SubprocessTransport(
                str(source),
                config=config,
                python=None if python is None else str(python),
                startup_timeout=startup_timeout,
                timeout=timeout,
            )
        )

    @classmethod
    def from_cluster(
        cls, name: str, *, address: str | None = None, startup_timeout: float = 60.0
    ) -> Self:
        """A component that `chainrule.deploy.ray.deploy` put on a Ray cluster under a name.

        Args:
            name: of the pool.
            address: of the cluster, such as `ray://head:10001` or `head:6379`; the one this process is
                connected to, or the one that Ray finds, when not given.
            startup_timeout: seconds to wait for a replica that is up.

        Raises:
            TransportError: there is no such cluster or no such pool.
        """
        options = {"address": address, "startup_timeout": startup_timeout}
        return cls(provided("cluster_transport")(name, **options))

    @classmethod
    def from_image(
        cls,
        image: str,
        *,
        gpus: str | Sequence[str | int] | None = None,
        memory: str | None = None,
        volumes: Mapping[str | Path, str] | Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        network: str | None = None,
        user: str | None = None,
        input_path: str | Path | None = None,
        output_path: str | Path | None = None,
        workers: int = 1,
        reuse: bool = False,
        engine: str | None = None,
        extra: Sequence[str] = (),
        startup_timeout: float = 120.0,
        timeout: float | None = None,
    ) -> Self:
        """A component in a container, on a free port of loopback; gone with this object or this process.

        Args:
            image: built by `chainrule image build` or by tesseract-core.
            gpus: `"all"`, or numbers or names of NVIDIA devices.
            memory: the most it may use, such as `"2g"`.
            volumes: `{folder here: folder there}`, or `"here:there[:ro|rw]"`s; read-only unless `:rw` is
                added.
            env: variables.
            network: a network of the engine, or `"host"`.
            user: `uid[:gid]` to run as.
            input_path: folder here that callers may name files in.
            output_path: folder here for files of runs; the container then runs as the calling user.
            workers: processes that answer calls.
            reuse: use a container of this image that was left running, or leave this one running.
            engine: `podman` or `docker`; the first one that is installed when not given.
            extra: further arguments of the engine's `run`.
            startup_timeout: seconds that the container may take to answer.
            timeout: seconds that any one wait may last; `None` waits forever.

        Raises:
            CapabilityError: there is no engine, or no such image.
            TransportError: the container did not start; the message has its log.
        """
        return cls(
            provided("image_transport")(
                image,
                gpus=gpus,
                memory=memory,
                volumes=volumes,
                env=env or {},
                network=network,
                user=user,
                input_path=input_path,
                output_path=output_path,
                workers=workers,
                extra=extra,
                reuse=reuse,
                engine=engine,
                startup_timeout=startup_timeout,
                timeout=timeout,
            )
        )

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
    def framework(self) -> str | None:
        """What the author's functions are written in; `None` when it is not known."""
        return self.openapi_schema.get("x-framework")

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
        return Document(document).summary(self.transport.place) + self.transport.known_state

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
        return self._send(endpoint, payload, run_id=run_id)

    def submit(
        self, endpoint: str, *args: Any, idempotency_key: str | None = None, **kwargs: Any
    ) -> Job:
        """Start a call and return at once.

        A server keeps the call as a job of its own: it goes on when this process ends, and is found again by
        its id (`job`), or by submitting the same call with the same key.

        Args:
            endpoint: name of the endpoint.
            *args: the arguments of the method of this name.
            idempotency_key: a server that knows a job of this key gives this job, and starts none; other
                components have no use for it.
            **kwargs: of this method too.

        Raises:
            CapabilityError: the component has no such endpoint.
            InputError: the key belongs to a job with other inputs (`idempotency_key_reused`).

        Example:
            >>> def double(x: float) -> float:
            ...     return 2 * x
            >>> Component.from_api(double).submit("apply", {"x": 3.0}).result()
            {'result': 6.0}
        """
        self._check_endpoint(endpoint)
        if endpoint == "health":
            return self.start_call(endpoint, {})
        send = partial(self._submit, idempotency_key=idempotency_key)
        return getattr(EndpointMethods.calling(send), endpoint)(*args, **kwargs)

    def _submit(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Let the server keep the call as a job; start it on a thread where the server does not."""
        job = None
        if not payload.get("batched") or takes_batches(self.openapi_schema, endpoint):
            try:
                job = self.transport.submit(
                    endpoint, payload, run_id=run_id, idempotency_key=idempotency_key
                )
            except TypeError as error:
                raise explained(error, payload) from error.__cause__
        return self._own(job) if job else self.start_call(endpoint, payload, run_id=run_id)

    def job(self, job_id: str) -> Job:
        """A job that the server of this component has taken on before, perhaps for another process.

        Raises:
            CapabilityError: there is no such job (`job_unknown`).
        """
        self._check_open()
        return self._own(self.transport.job(job_id))

    def _own(self, job: Job) -> Job:
        """A job whose result shows the units of the outputs."""
        if isinstance(job, ServerJob) and job.label == "apply":
            job.units = self.output_units
        return job

    def start_call(
        self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None
    ) -> Job:
        """Start a call on a thread of this process; arguments as in `call`."""
        self._check_endpoint(endpoint)

        def send(ticket: Ticket) -> Any:
            answer = self._send(endpoint, payload, run_id=run_id, ticket=ticket)
            return Result.of(answer, self.output_units if endpoint == "apply" else None)

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
            answers = self.transport.call_many("apply", payloads, ticket=ticket)
            return [Result.of(answer, self.output_units) for answer in answers]

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

        if endpoint == "health":
            return self.transport.health()
        if payload.get("batched") and not takes_batches(self.openapi_schema, endpoint):
            return send_one_by_one(send, endpoint, payload)
        return send(payload)

    def _check_endpoint(self, endpoint: str) -> None:
        self._check_open()
        if endpoint not in self.available_endpoints:
            raise endpoint_missing(self.name, endpoint, self.available_endpoints)

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


def _check_no_url(source: Any) -> None:
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        raise DefinitionError(
            f"{source} is the address of a server, not of a file: Component.from_url({source!r}).",
            code="bad_source",
        )

"""`Component`: the one handle to a component, wherever it is."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from chainrule._errors import CapabilityError, TransportError
from chainrule.client._constructors import transport_of
from chainrule.client._jobs import CallJob, Job
from chainrule.client._mapping import Outcome, stream_outcomes
from chainrule.client._payloads import make_payload, send_one_by_one, takes_batches
from chainrule.client._transport import Ticket, Transport
from chainrule.runtime import ArraySpec, Capability, ComponentConfig, LocalComponent
from chainrule.runtime._component._document import (
    capabilities_of,
    differentiable_of,
    endpoints_of,
)
from chainrule.runtime._component._summary import summary_html, summary_text

__all__ = ["Component"]


class Component:
    """A component: in this process, in a process of its own, behind a URL, or a pool of replicas.

    Made by `from_api`, `from_source`, `from_url`, `from_image` or `from_cluster`. Inputs and results are
    plain trees, nested dicts and lists of NumPy arrays and JSON values, and errors are the same exceptions,
    whatever the transport.

    Args:
        transport: the way to the component.

    Example:
        >>> def double(x: float) -> float:
        ...     return 2 * x
        >>> Component.from_api(double).apply({"x": 3.0})
        {'result': 6.0}
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False

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
        from chainrule.client._in_process import InProcessTransport
        from chainrule.runtime import load_component

        return cls(InProcessTransport(load_component(source, config=config)))

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        token: str | None = None,
        timeout: float | None = None,
        retries: int = 2,
        idempotent: bool = False,
        share_memory: bool = True,
        verify: bool | ssl.SSLContext = True,
    ) -> Self:
        """A component that is served somewhere, by Chainrule or by a Tesseract. Nothing is sent yet.

        Args:
            url: `http://host:port`, with the path of the component where a server has several.
            token: by which the server knows you.
            timeout: seconds that any one wait may last; `None` waits forever.
            retries: how often a call is repeated when it certainly has not run: the connection could not be
                made or broke while the request was sent, or the server turned it away with `Retry-After`.
            idempotent: calls may run twice; they are then repeated also when the connection broke later.
            share_memory: let arrays go through shared memory when the server is on this host.
            verify: how certificates of `https` are checked; `False` trusts any.

        Raises:
            InputError: the URL is not one.
        """
        from chainrule.client._http import HttpTransport

        return cls(
            HttpTransport(
                url,
                token=token,
                timeout=timeout,
                retries=retries,
                idempotent=idempotent,
                share_memory=share_memory,
                verify=verify,
            )
        )

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
        return cls(transport_of("cluster", name, **options))

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
            image: built by `chainrule build` or by tesseract-core.
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
            transport_of(
                "image",
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
        return endpoints_of(self.openapi_schema)

    @cached_property
    def capabilities(self) -> Mapping[str, Capability]:
        """How each endpoint is available: native, derived and from what, or absent."""
        return capabilities_of(self.openapi_schema)

    @cached_property
    def differentiable_inputs(self) -> Mapping[str, ArraySpec]:
        """Path pattern → declaration of every differentiable input."""
        return differentiable_of(self.openapi_schema, "Input")

    @cached_property
    def differentiable_outputs(self) -> Mapping[str, ArraySpec]:
        """Path pattern → declaration of every differentiable output."""
        return differentiable_of(self.openapi_schema, "Output")

    @property
    def batching(self) -> str | None:
        """How the author says the component treats extra leading axes."""
        return self.openapi_schema.get("x-batching")

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
        return summary_text(document, self.transport.place)

    def _repr_html_(self) -> str | None:
        try:
            return summary_html(self.openapi_schema, self.transport.place)
        except TransportError:
            return None

    # What it does

    def health(self) -> dict[str, Any]:
        """What the component says of its health."""
        self._check_open()
        return self.transport.health()

    def apply(self, inputs: Any, *, run_id: str | None = None) -> Any:
        """The outputs for some inputs.

        Args:
            inputs: a tree that fits the input schema, or a model.
            run_id: what files of this call are to be known by.

        Raises:
            InputError: the inputs are at fault; `details["problems"]` lists every reason.
            ComponentError: the component is at fault.
            TransportError: no answer came.
        """
        return self._call("apply", inputs, run_id=run_id)

    def jacobian(
        self,
        inputs: Any,
        jac_inputs: Collection[str],
        jac_outputs: Collection[str],
        *,
        run_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """`{output path: {input path: block}}`, each block of output shape + input shape."""
        return self._call("jacobian", inputs, jac_inputs, jac_outputs, run_id=run_id)

    def jacobian_vector_product(
        self,
        inputs: Any,
        jvp_inputs: Collection[str],
        jvp_outputs: Collection[str],
        tangent_vector: Mapping[str, Any],
        *,
        batched: bool = False,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{output path: J · tangent}`.

        Args:
            inputs: where to differentiate.
            jvp_inputs: paths of the inputs.
            jvp_outputs: paths of the outputs.
            tangent_vector: `{input path: array}`.
            batched: whether tangents carry a leading batch axis; the result then does too. It is one
                request, except to servers that do not know of batches.
            run_id: as in `apply`.
        """
        arguments = (inputs, jvp_inputs, jvp_outputs, tangent_vector)
        return self._call("jacobian_vector_product", *arguments, batched=batched, run_id=run_id)

    def vector_jacobian_product(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        *,
        batched: bool = False,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{input path: Jᵀ · cotangent}`; `batched` as in `jacobian_vector_product`."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        return self._call("vector_jacobian_product", *arguments, batched=batched, run_id=run_id)

    def hessian_vector_product(
        self,
        inputs: Any,
        hvp_inputs: Collection[str],
        hvp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        tangent_vector: Mapping[str, Any],
        *,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{input path: H · tangent}`, with H the Hessian of ⟨cotangent, outputs⟩."""
        arguments = (inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector)
        return self._call("hessian_vector_product", *arguments, run_id=run_id)

    def value_and_vjp(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        *,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{"outputs": …, "gradient": {input path: Jᵀ · cotangent}}`, in one request."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        return self._call("value_and_vjp", *arguments, run_id=run_id)

    def abstract_eval(self, abstract_inputs: Any) -> Any:
        """Shapes and dtypes of the outputs for shapes and dtypes of the inputs.

        Args:
            abstract_inputs: the inputs with `{"shape": …, "dtype": …}`, or anything that has a shape and
                a dtype, in place of every array. Arrays are not sent, only what they look like.
        """
        return self._call("abstract_eval", abstract_inputs)

    def tagged_intermediates(
        self,
        inputs: Any,
        tag: str = "intermediates",
        tangent_vector: Mapping[str, Any] | None = None,
        cotangent_vector: Mapping[str, Any] | None = None,
        *,
        abstract: bool = False,
        run_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """The values that the component tags with `sow` on its way from inputs to outputs.

        Args:
            inputs: as in `apply`; with `abstract` as in `abstract_eval`.
            tag: the group of names to give.
            tangent_vector: `{input path: array}`: push it forward, and give tangents too.
            cotangent_vector: `{output path: array}`: pull it back, and give cotangents too.
            abstract: give `{"shape": …, "dtype": …}` in place of arrays, and compute nothing.
            run_id: as in `apply`.

        Returns:
            `{name: {"primal": …, "tangent" or "cotangent": …}}`, as `save_intermediates` gives it.
        """
        return self._call(
            "tagged_intermediates", inputs, tag=tag, tangent_vector=tangent_vector,
            cotangent_vector=cotangent_vector, abstract=abstract, run_id=run_id,
        )  # fmt: skip

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
        if endpoint != "health":
            run_id = kwargs.get("run_id")
            arguments = {name: value for name, value in kwargs.items() if name != "run_id"}
            payload = make_payload(endpoint, *args, **arguments)
            if not payload.get("batched") or takes_batches(self.openapi_schema, endpoint):
                job = self.transport.submit(endpoint, payload, run_id=run_id)
                if job is not None:
                    return job
        return self._in_background(endpoint, *args, **kwargs)

    def job(self, job_id: str) -> Job:
        """A job that the server of this component has taken on before, perhaps for another process.

        Raises:
            CapabilityError: there is no such job (`job_unknown`).
        """
        self._check_open()
        return self.transport.job(job_id)

    def _in_background(self, endpoint: str, *args: Any, **kwargs: Any) -> Job:
        """Start a call on a thread of this process."""
        self._check_endpoint(endpoint)
        if endpoint == "health":
            return CallJob(self._workers(), lambda ticket: self.transport.health(), endpoint)
        run_id = kwargs.pop("run_id", None)
        payload = make_payload(endpoint, *args, **kwargs)
        return CallJob(
            self._workers(),
            lambda ticket: self._send(endpoint, payload, run_id=run_id, ticket=ticket),
            endpoint,
        )

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
        return (outcome.unwrap() for outcome in outcomes)

    def map_outcomes(
        self,
        inputs: Iterable[Any],
        *,
        max_in_flight: int | None = None,
        ordered: bool = False,
        progress: bool = False,
    ) -> Iterator[Outcome]:
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
        self._check_endpoint("apply")

        def send_many(items: Sequence[Any], ticket: Ticket) -> Sequence[Any]:
            payloads = [make_payload("apply", item) for item in items]
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

    async def apply_async(self, inputs: Any, *, run_id: str | None = None) -> Any:
        """`apply` for asynchronous code."""
        return await self._in_background("apply", inputs, run_id=run_id)

    async def jacobian_async(
        self, inputs: Any, jac_inputs: Collection[str], jac_outputs: Collection[str]
    ) -> dict[str, dict[str, Any]]:
        """`jacobian` for asynchronous code."""
        return await self._in_background("jacobian", inputs, jac_inputs, jac_outputs)

    async def jacobian_vector_product_async(
        self,
        inputs: Any,
        jvp_inputs: Collection[str],
        jvp_outputs: Collection[str],
        tangent_vector: Mapping[str, Any],
        *,
        batched: bool = False,
    ) -> dict[str, Any]:
        """`jacobian_vector_product` for asynchronous code."""
        arguments = (inputs, jvp_inputs, jvp_outputs, tangent_vector)
        return await self._in_background("jacobian_vector_product", *arguments, batched=batched)

    async def vector_jacobian_product_async(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        *,
        batched: bool = False,
    ) -> dict[str, Any]:
        """`vector_jacobian_product` for asynchronous code."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        return await self._in_background("vector_jacobian_product", *arguments, batched=batched)

    async def hessian_vector_product_async(
        self,
        inputs: Any,
        hvp_inputs: Collection[str],
        hvp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
        tangent_vector: Mapping[str, Any],
    ) -> dict[str, Any]:
        """`hessian_vector_product` for asynchronous code."""
        arguments = (inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector)
        return await self._in_background("hessian_vector_product", *arguments)

    async def value_and_vjp_async(
        self,
        inputs: Any,
        vjp_inputs: Collection[str],
        vjp_outputs: Collection[str],
        cotangent_vector: Mapping[str, Any],
    ) -> dict[str, Any]:
        """`value_and_vjp` for asynchronous code."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        return await self._in_background("value_and_vjp", *arguments)

    async def abstract_eval_async(self, abstract_inputs: Any) -> Any:
        """`abstract_eval` for asynchronous code."""
        return await self._in_background("abstract_eval", abstract_inputs)

    async def health_async(self) -> dict[str, Any]:
        """`health` for asynchronous code."""
        return await self._in_background("health")

    # Its end

    def close(self) -> None:
        """Let go of connections and processes; calls that are under way finish first."""
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

    def _call(
        self, endpoint: str, *arguments: Any, run_id: str | None = None, **options: Any
    ) -> Any:
        self._check_endpoint(endpoint)
        return self._send(endpoint, make_payload(endpoint, *arguments, **options), run_id=run_id)

    def _send(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        def send(payload: Mapping[str, Any]) -> Any:
            return self.transport.call(endpoint, payload, run_id=run_id, ticket=ticket)

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
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self.max_concurrency, thread_name_prefix="chainrule-client"
                )
            return self._executor

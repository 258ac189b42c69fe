"""`Tesseract`: the ancestor's handle, around a `Component`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from chainrule._endpoints import EndpointMethods
from chainrule._errors import CapabilityError
from chainrule._trees import map_leaves
from chainrule.client import Component
from chainrule.compat.tesseract_core._failures import load_errors, pydantic_errors
from chainrule.compat.tesseract_core.runtime.config import (
    check_gpu_transport,
    component_settings,
)
from chainrule.runtime import LocalComponent
from chainrule.runtime.testing import RegressionSpec, run_test

if TYPE_CHECKING:
    from chainrule.deploy.images import Container


@dataclass(frozen=True)
class RequestedEncoding:
    """How a caller wants arrays to travel.

    Attributes:
        output_format: `json`, `json+base64` or `json+binref`; `None` leaves it to the server.
        gpu_transport: how device memory travels.
        compression: `lz4`, `none`, or `None` to leave it to the server.
    """

    output_format: str | None = None
    gpu_transport: str | None = None
    compression: str | None = None


@dataclass(frozen=True)
class ServerCapabilities:
    """What a server says it can produce; `None` where it says nothing.

    Attributes:
        output_formats: names of formats.
        gpu_transports: names of transports.
        compressions: names of compressions.
    """

    output_formats: tuple[str, ...] | None
    gpu_transports: tuple[str, ...] | None
    compressions: tuple[str, ...] | None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ServerCapabilities:
        """Read them from an OpenAPI document."""

        def listed(name: str) -> tuple[str, ...] | None:
            found = document.get(f"x-supported-{name}")
            return None if found is None else tuple(found)

        return cls(listed("output-formats"), listed("gpu-transports"), listed("compressions"))


_ENDPOINTS = (
    "apply",
    "jacobian",
    "jacobian_vector_product",
    "vector_jacobian_product",
    "health",
    "abstract_eval",
)
_DERIVATIVES = _ENDPOINTS[1:4]
Timeout = float | tuple[float, float] | None


class Tesseract(EndpointMethods):
    """A handle to a component under the ancestor's names.

    Made by `from_tesseract_api`, `from_url`, `from_source` or `from_image`; the last two have to be entered
    or `serve`d before use.

    Example:
        >>> def double(x: float) -> float:
        ...     return 2 * x
        >>> Tesseract.from_tesseract_api(double).apply({"x": 3.0})
        {'result': 6.0}
    """

    _open: Callable[[], Component] | None
    _component: Component | None
    _encoding: RequestedEncoding
    derives = True
    """Whether endpoints that the author did not write are made from others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "A Tesseract is made by one of its constructors: Tesseract.from_tesseract_api(…), "
            "Tesseract.from_url(…), Tesseract.from_source(…) or Tesseract.from_image(…)."
        )

    @classmethod
    def _make(
        cls,
        encoding: RequestedEncoding,
        *,
        component: Component | None = None,
        open_component: Callable[[], Component] | None = None,
    ) -> Self:
        self = cls.__new__(cls)
        self._open, self._component, self._encoding = open_component, component, encoding
        return self

    @classmethod
    def from_tesseract_api(
        cls,
        tesseract_api: str | Path | ModuleType | Any,
        input_path: str | Path | None = None,
        output_path: str | Path | None = None,
        output_format: str = "json+base64",
        gpu_transport: str | None = None,
        runtime_config: Mapping[str, Any] | None = None,
        stream_logs: bool | Callable[[str], Any] = False,
    ) -> Self:
        """A component in this process.

        Args:
            tesseract_api: path of the module file, or the module. Functions and components work too.
            input_path: the folder that callers may name files in.
            output_path: the folder for files of runs.
            output_format: remembered; nothing is encoded in this process.
            gpu_transport: only `"none"`.
            runtime_config: further settings, by the ancestor's names.
            stream_logs: accepted; what the author prints appears at once anyway.

        Raises:
            FileNotFoundError: there is no such file.
            RuntimeError: it cannot be loaded, or is not a component.
        """
        if isinstance(tesseract_api, (str, Path)):
            _check_file(tesseract_api)
        settings = component_settings(runtime_config, input_path, output_path, output_format)
        encoding = RequestedEncoding(output_format, _checked(gpu_transport))
        with load_errors():
            component = Component.from_api(tesseract_api, config=settings)
        return cls._make(encoding, component=component)

    @classmethod
    def from_url(
        cls, url: str, server_output_path: str | Path | None = None, timeout: Timeout = None
    ) -> Self:
        """A component that is served somewhere, by Chainrule or by a Tesseract.

        Args:
            url: where; `http://` is assumed when no scheme is given.
            server_output_path: accepted; arrays never come back as files.
            timeout: seconds that any one wait may last, or a pair for connecting and for reading, of
                which the longer one counts.
        """
        waits_at_most = max(timeout) if isinstance(timeout, tuple) else timeout
        return cls._make(
            RequestedEncoding(), component=Component.from_url(url, timeout=waits_at_most)
        )

    @classmethod
    def from_source(
        cls,
        tesseract_api: str | Path,
        input_path: str | Path | None = None,
        output_path: str | Path | None = None,
        output_format: str = "json+base64",
        gpu_transport: str | None = None,
        runtime_config: Mapping[str, Any] | None = None,
        stream_logs: bool | Callable[[str], Any] = False,
        python_executable: str | Path | None = None,
        startup_timeout: float = 30.0,
        experimental_binref_pool: bool = False,
    ) -> Self:
        """A component in a process of its own, from `serve` (or `with`) on.

        Args:
            tesseract_api: path of the module file or its folder.
            input_path: the folder that callers may name files in.
            output_path: the folder for files of runs.
            output_format: remembered; arrays go to the process as they are.
            gpu_transport: only `"none"`.
            runtime_config: further settings, by the ancestor's names.
            stream_logs: accepted; what the author prints goes to standard error.
            python_executable: the interpreter; without it the component gets a virtual environment with
                its own requirements.
            startup_timeout: seconds that loading may take.
            experimental_binref_pool: accepted; memory is always reused.

        Raises:
            FileNotFoundError: there is no such file.
        """
        _check_file(tesseract_api)
        settings = component_settings(runtime_config, input_path, output_path, output_format)
        # The process answers one call at a time; what it prints is kept where files of runs were asked for.
        settings = settings.replace(keep_output=output_path is not None)
        opener = partial(
            Component.from_source,
            tesseract_api,
            config=settings,
            environment=python_executable is None,
            python=python_executable,
            startup_timeout=startup_timeout,
        )
        return cls._make(
            RequestedEncoding(output_format, _checked(gpu_transport)), open_component=opener
        )

    @classmethod
    def from_image(
        cls,
        image_name: str,
        *,
        host_ip: str = "127.0.0.1",
        port: str | None = None,
        network: str | None = None,
        network_alias: str | None = None,
        volumes: list[str] | None = None,
        environment: dict[str, str] | None = None,
        gpus: Sequence[str] | None = None,
        num_workers: int = 1,
        user: str | None = None,
        memory: str | None = None,
        input_path: str | Path | None = None,
        output_path: str | Path | None = None,
        output_format: str = "json+base64",
        gpu_transport: str | None = None,
        docker_args: list[str] | None = None,
        runtime_config: Mapping[str, Any] | None = None,
        stream_logs: bool | Callable[[str], Any] = False,
        skip_health_check: bool = False,
        startup_timeout: float = 30.0,
        timeout: Timeout = None,
        experimental_binref_pool: bool = False,
    ) -> Self:
        """A component in a container, from `serve` (or `with`) on.

        Args:
            image_name: of an image that Chainrule or tesseract-core built.
            host_ip: only loopback.
            port: a number, or a range such as `8000-8010`; a free one when not given.
            network: of the engine.
            network_alias: a name in that network.
            volumes: `here:there[:ro|rw]`.
            environment: variables.
            gpus: devices.
            num_workers: processes that answer calls.
            user: `uid[:gid]`.
            memory: the most it may use.
            input_path: folder that callers may name files in.
            output_path: folder for files of runs.
            output_format: remembered; the native client chooses.
            gpu_transport: only `"none"`.
            docker_args: further arguments of the engine.
            runtime_config: settings of the ancestor's runtime, for its images.
            stream_logs: accepted; `server_logs` has everything.
            skip_health_check: accepted; a container is always waited for.
            startup_timeout: seconds that it may take to answer.
            timeout: as in `from_url`.
            experimental_binref_pool: accepted; memory is always reused.
        """
        opener = partial(
            _open_image,
            image_name,
            host_ip=host_ip,
            port=port,
            network_alias=network_alias,
            docker_args=docker_args,
            environment=environment,
            runtime_config=runtime_config,
            network=network,
            volumes=volumes,
            gpus=gpus,
            workers=num_workers,
            user=user,
            memory=memory,
            input_path=input_path,
            output_path=output_path,
            startup_timeout=startup_timeout,
            timeout=max(timeout) if isinstance(timeout, tuple) else timeout,
        )
        return cls._make(
            RequestedEncoding(output_format, _checked(gpu_transport)), open_component=opener
        )

    # Its life

    def serve(self) -> None:
        """Start the process of `from_source`, or the container of `from_image`."""
        if self._open is None:
            raise RuntimeError(
                "Only a Tesseract made by `from_source` or `from_image` has something to serve."
            )
        if self._component is not None:
            raise RuntimeError("This Tesseract is being served already.")
        with load_errors():
            self._component = self._open()

    def teardown(self) -> None:
        """Stop it."""
        if self._open is None or self._component is None:
            raise RuntimeError("This Tesseract is not being served.")
        component, self._component = self._component, None
        component.close()

    def __enter__(self) -> Self:
        if self._open is not None and self._component is None:
            self.serve()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None and self._component is not None:
            self.teardown()

    def server_logs(self) -> str:
        """What the container has written. A process of `from_source` writes to standard error instead.

        Raises:
            CapabilityError: for a component of `from_source`.
        """
        if self._open is None:
            raise RuntimeError(
                "Only a Tesseract made by `from_source` or `from_image` has logs of a server."
            )
        container = self._container()
        if container is not None:
            return container.log()
        raise CapabilityError(
            "What a component prints goes to this process's standard error and is not kept.",
            code="logs_not_kept",
        )

    def container_info(self) -> Container:
        """The container of `from_image`.

        Raises:
            RuntimeError: there is no container, or it has not been served yet.
        """
        container = self._container()
        if container is None:
            raise RuntimeError("Only a Tesseract made by `from_image` has a container.")
        return container

    def _container(self) -> Container | None:
        return getattr(self.component.transport, "container", None)

    # What it is

    @property
    def component(self) -> Component:
        """The native handle.

        Raises:
            RuntimeError: it has not been served yet.
        """
        if self._component is None:
            raise RuntimeError(
                "A Tesseract made by `from_source` or `from_image` has to be entered (`with …:`) or "
                "`.serve()`d first."
            )
        return self._component

    @property
    def local(self) -> LocalComponent | None:
        """The component itself when it is in this process; JAX programs inline it."""
        return self.component.local

    @property
    def openapi_schema(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return self.component.openapi_schema

    @property
    def available_endpoints(self) -> list[str]:
        """The endpoints that the author wrote, `health`, and `test` where the ancestor has it.

        Those that are derived can be called too; they are in `derived_endpoints`.
        """
        derived = set(_derived(self.component))
        offered = [name for name in self.component.available_endpoints if name not in derived]
        is_tested = self.local is not None or self._open is not None
        has_test = is_tested or "/test" in self.openapi_schema["paths"]
        return [name for name in _ENDPOINTS if name in offered] + ["test"] * has_test

    @property
    def derived_endpoints(self) -> list[str]:
        """The endpoints that are made from others, and can be called as if the author had written them."""
        return _derived(self.component) if self.derives else []

    def with_derived_endpoints(self, derives: bool) -> Self:
        """A view of the same component that has its derived endpoints, or refuses them, as the ancestor.

        `apply_tesseract` goes by it, too.
        """
        view = copy.copy(self)
        view.derives = derives
        return view

    @property
    def server_capabilities(self) -> ServerCapabilities | None:
        """What the server says it can produce; `None` in this process."""
        return None if self.local is not None else ServerCapabilities.of(self.openapi_schema)

    @property
    def current_encoding(self) -> RequestedEncoding:
        """The encoding that was asked for. It is remembered; the native client chooses the fastest one."""
        return self._encoding

    def with_encoding(
        self,
        *,
        output_format: str | None = None,
        gpu_transport: str | None = None,
        compression: str | None = None,
    ) -> Self:
        """A view of the same component with another `current_encoding`."""
        _checked(gpu_transport)
        view = copy.copy(self)
        view._encoding = RequestedEncoding(
            output_format or self._encoding.output_format,
            gpu_transport or self._encoding.gpu_transport,
            compression or self._encoding.compression,
        )
        return view

    def resolve_gpu_transport(self) -> str:
        """`"none"`: device memory is not shared."""
        return "none"

    # What it does

    def abstract_eval(self, abstract_inputs: Any) -> Any:
        """Shapes and dtypes of the outputs for those of the inputs."""
        found = super().abstract_eval(abstract_inputs)
        return found if self.local is None else _with_tuples(found)

    def health(self) -> dict[str, Any]:
        """`{"status": "ok"}`."""
        return self.component.health()

    def test(self, test_spec: Mapping[str, Any]) -> None:
        """Run one regression test.

        Raises:
            AssertionError: the answer is not the expected one.
            RuntimeError: an exception that was not expected.
        """
        result = run_test(self, RegressionSpec.model_validate(test_spec))
        if result.status == "failed":
            raise AssertionError(result.message)
        if result.status == "error":
            raise RuntimeError(result.message)

    def call(self, endpoint: str, payload: Mapping[str, Any], *, run_id: str | None = None) -> Any:
        """Send the whole body of a request to an endpoint."""
        if endpoint == "health":
            return self.health()
        if not self.derives and endpoint in _derived(self.component):
            raise NotImplementedError(
                f"Endpoint {endpoint!r} not implemented for this Tesseract. Its author wrote "
                f"{', '.join(self.available_endpoints)}; `with_derived_endpoints(True)` has the others."
            )
        with pydantic_errors(endpoint, payload, is_remote=self.local is None):
            return self.component.transport.call(endpoint, payload, run_id=run_id)


def _derived(component: Component) -> list[str]:
    capabilities = component.capabilities
    return [name for name in _DERIVATIVES if capabilities[name].status == "derived"]


def _check_file(path: str | Path) -> None:
    if not Path(path).exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))


def _checked(gpu_transport: str | None) -> str:
    check_gpu_transport(gpu_transport)
    return gpu_transport or "none"


def _open_image(
    image: str,
    *,
    host_ip: str,
    port: str | None,
    network_alias: str | None,
    docker_args: Sequence[str] | None,
    environment: Mapping[str, str] | None,
    runtime_config: Mapping[str, Any] | None,
    startup_timeout: float,
    timeout: float | None,
    **options: Any,
) -> Component:
    """Start a container that ends with the handle."""
    # Imported here: most handles have nothing to do with containers.
    from chainrule.compat.tesseract_core import _containers
    from chainrule.deploy.images import ImageTransport, RunOptions, start_container

    container = start_container(
        image,
        RunOptions(
            env=_containers.container_environment(environment, runtime_config),
            extra=[*_containers.aliased(network_alias), *(docker_args or ())],
            **options,
        ),
        engine=_containers.container_engine(),
        port=_containers.chosen_port(host_ip, port),
        startup_timeout=startup_timeout,
    )
    return Component(ImageTransport(container, timeout))


def _with_tuples(tree: Any) -> Any:
    """Shapes as tuples, which they are in this process; over the wire they are lists."""

    def is_described(node: Any) -> bool:
        return isinstance(node, Mapping) and node.keys() == {"shape", "dtype"}

    def with_tuple(leaf: Any) -> Any:
        return {**leaf, "shape": tuple(leaf["shape"])} if is_described(leaf) else leaf

    return map_leaves(with_tuple, tree, is_leaf=is_described)

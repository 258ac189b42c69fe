"""`Tesseract`: the ancestor's handle, around a `Component`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from chainrule._errors import CapabilityError
from chainrule.client import Component
from chainrule.client._payloads import make_payload
from chainrule.compat.tesseract_core._containers import no_containers
from chainrule.compat.tesseract_core._encodings import RequestedEncoding, ServerCapabilities
from chainrule.compat.tesseract_core._failures import pydantic_errors
from chainrule.compat.tesseract_core.runtime._settings import component_settings
from chainrule.runtime import LocalComponent
from chainrule.runtime.testing import RegressionSpec, run_test

__all__ = ["Tesseract"]

_ENDPOINTS = (
    "apply",
    "jacobian",
    "jacobian_vector_product",
    "vector_jacobian_product",
    "health",
    "abstract_eval",
)
Timeout = float | tuple[float, float] | None


class Tesseract:
    """A handle to a component under the ancestor's names.

    Made by `from_tesseract_api`, `from_url` or `from_source`; the last one has to be entered or `serve`d
    before use.

    Example:
        >>> def double(x: float) -> float:
        ...     return 2 * x
        >>> Tesseract.from_tesseract_api(double).apply({"x": 3.0})
        {'result': 6.0}
    """

    _open: Callable[[], Component] | None
    _component: Component | None
    _encoding: RequestedEncoding

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "A Tesseract is made by one of its constructors: Tesseract.from_tesseract_api(…), "
            "Tesseract.from_url(…) or Tesseract.from_source(…)."
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
            gpu_transport: remembered likewise.
            runtime_config: further settings, by the ancestor's names.
            stream_logs: accepted; what the author prints appears at once anyway.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if isinstance(tesseract_api, (str, Path)) and not Path(tesseract_api).exists():
            raise FileNotFoundError(2, "No such file or directory", str(tesseract_api))
        settings = component_settings(runtime_config, input_path, output_path, output_format)
        component = Component.from_api(tesseract_api, config=settings)
        return cls._make(
            RequestedEncoding(output_format, gpu_transport or "none"), component=component
        )

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
            gpu_transport: remembered likewise.
            runtime_config: further settings, by the ancestor's names.
            stream_logs: accepted; what the author prints goes to standard error.
            python_executable: the interpreter; without it the component gets a virtual environment with
                its own requirements.
            startup_timeout: seconds that loading may take.
            experimental_binref_pool: accepted; memory is always reused.
        """
        settings = component_settings(runtime_config, input_path, output_path, output_format)
        opener = partial(
            Component.from_source,
            tesseract_api,
            config=settings,
            environment=python_executable is None,
            python=python_executable,
            startup_timeout=startup_timeout,
        )
        return cls._make(
            RequestedEncoding(output_format, gpu_transport or "none"), open_component=opener
        )

    @classmethod
    def from_image(cls, image_name: str, **settings: Any) -> Self:
        """Not here: start the image with the original and use `from_url`.

        Raises:
            CapabilityError: always.
        """
        no_containers(
            "Tesseract.from_image",
            f"Start it with `tesseract serve {image_name}` and use Tesseract.from_url.",
        )

    # Its life

    def serve(self) -> None:
        """Start the process of a component made by `from_source`."""
        if self._open is None:
            raise RuntimeError("Only a Tesseract made by `from_source` has something to serve.")
        if self._component is not None:
            raise RuntimeError("This Tesseract is being served already.")
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
        """Not kept: what a component prints goes to standard error, what it logs to its run folder.

        Raises:
            CapabilityError: always for a component of `from_source`.
        """
        if self._open is None:
            raise RuntimeError("Only a Tesseract made by `from_source` has logs of a server.")
        raise CapabilityError(
            "What a component prints goes to this process's standard error and is not kept.",
            code="logs_not_kept",
        )

    def container_info(self) -> Any:
        """Not here: no container is involved."""
        raise RuntimeError("Only a Tesseract made by `from_image` has a container.")

    # What it is

    @property
    def component(self) -> Component:
        """The native handle.

        Raises:
            RuntimeError: it has not been served yet.
        """
        if self._component is None:
            raise RuntimeError(
                "A Tesseract made by `from_source` has to be entered (`with …:`) or `.serve()`d first."
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
        """The endpoints that can be called, derived ones included; and `test`."""
        offered = self.component.available_endpoints
        return [name for name in _ENDPOINTS if name in offered] + ["test"]

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

    def apply(self, inputs: Any, run_id: str | None = None) -> Any:
        """The outputs for some inputs.

        Raises:
            pydantic.ValidationError: the inputs are at fault.
            RuntimeError: the component is at fault (a `ComponentError`).
        """
        return self._call("apply", run_id, inputs)

    def jacobian(
        self,
        inputs: Any,
        jac_inputs: Sequence[str],
        jac_outputs: Sequence[str],
        run_id: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """`{output path: {input path: block}}`."""
        return self._call("jacobian", run_id, inputs, jac_inputs, jac_outputs)

    def jacobian_vector_product(
        self,
        inputs: Any,
        jvp_inputs: Sequence[str],
        jvp_outputs: Sequence[str],
        tangent_vector: Mapping[str, Any],
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{output path: J · tangent}`."""
        arguments = (inputs, jvp_inputs, jvp_outputs, tangent_vector)
        return self._call("jacobian_vector_product", run_id, *arguments)

    def vector_jacobian_product(
        self,
        inputs: Any,
        vjp_inputs: Sequence[str],
        vjp_outputs: Sequence[str],
        cotangent_vector: Mapping[str, Any],
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """`{input path: Jᵀ · cotangent}`."""
        arguments = (inputs, vjp_inputs, vjp_outputs, cotangent_vector)
        return self._call("vector_jacobian_product", run_id, *arguments)

    def abstract_eval(self, abstract_inputs: Any) -> Any:
        """Shapes and dtypes of the outputs for those of the inputs."""
        found = self._call("abstract_eval", None, abstract_inputs)
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
        with pydantic_errors(endpoint, payload):
            return self.component.transport.call(endpoint, payload, run_id=run_id)

    def _call(self, endpoint: str, run_id: str | None, *arguments: Any) -> Any:
        return self.call(endpoint, make_payload(endpoint, *arguments), run_id=run_id)


def _with_tuples(tree: Any) -> Any:
    """Shapes as tuples, which they are in this process; over the wire they are lists."""
    if isinstance(tree, Mapping):
        if set(tree) == {"shape", "dtype"}:
            return {**tree, "shape": tuple(tree["shape"])}
        return {key: _with_tuples(value) for key, value in tree.items()}
    return [_with_tuples(item) for item in tree] if isinstance(tree, list) else tree

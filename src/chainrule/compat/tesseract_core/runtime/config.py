"""The ancestor's settings and environment variables, and what they mean for a component here.

Each component has its own settings; `get_config` is about the component whose code is running.
"""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from chainrule._errors import CapabilityError
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import Run, outside_config

__all__ = ["RuntimeConfig", "get_config", "override_config", "snapshot_config", "update_config"]

_updates: ContextVar[Mapping[str, Any]] = ContextVar("updates", default=MappingProxyType({}))

# A user who starts a component in this process or on the command line may also run what it refers to. The
# callers of a server may not.
OWN_REFERENCES: frozenset[Literal["api_path", "image", "url"]] = frozenset(
    {"api_path", "image", "url"}
)


def _parse_mapping(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) else value


class RuntimeConfig(BaseModel):
    """Every setting of the ancestor's runtime, with its default.

    Attributes:
        api_path: the module file.
        name, description, version: of the component.
        debug: let tracebacks out to remote callers.
        debugpy_host, debugpy_port: accepted; no debugger is started.
        input_path, output_path: folders for files that callers name, and for files of runs.
        output_format, output_file, compression: how and where a result is written.
        mlflow_tracking_uri, mlflow_run_extra_args: where metrics go.
        profiling, tracing: log profiles, or arguments and results.
        gpu_transport, cuda_ipc_pool_fraction: only `"none"` is supported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_path: Path = Path("tesseract_api.py")
    name: str = "Tesseract"
    description: str = ""
    version: str = "unknown"
    debug: bool = False
    debugpy_host: str = "127.0.0.1"
    debugpy_port: int = 5678
    input_path: Path = Path()
    output_path: Path = Path()
    output_format: Literal["json", "json+base64", "json+binref"] = "json"
    output_file: str = ""
    compression: Literal["lz4"] | None = None
    mlflow_tracking_uri: str = ""
    mlflow_run_extra_args: Annotated[dict[str, Any], BeforeValidator(_parse_mapping)] = {}
    profiling: bool = False
    tracing: bool = False
    gpu_transport: Literal["none", "cuda_ipc"] = "none"
    cuda_ipc_pool_fraction: float = 0.25

    def for_component(self, *, trusts_caller: bool) -> ComponentConfig:
        """The native settings.

        Args:
            trusts_caller: whether callers are the ones who run the component.

        Raises:
            CapabilityError: device memory was to be shared (`gpu_transport_not_supported`).
        """
        check_gpu_transport(self.gpu_transport)
        return ComponentConfig(
            **{name: getattr(self, name) for name in ("name", "version") if self._is_given(name)},
            description=self.description.replace("\\n", "\n") or None,
            input_path=self.input_path,
            output_path=self.output_path,
            output_format=self.output_format,
            compression=self.compression,
            debug=self.debug,
            profiling=self.profiling,
            tracing=self.tracing,
            mlflow_tracking_uri=self.mlflow_tracking_uri,
            mlflow_run_extra_args=self.mlflow_run_extra_args,
            allow_references=OWN_REFERENCES if trusts_caller else frozenset(),
        )

    def _is_given(self, name: str) -> bool:
        return name in self.model_fields_set


def check_gpu_transport(name: str | None) -> None:
    """Refuse every way of sharing device memory.

    Raises:
        ValueError: there is no such way.
        CapabilityError: there is, in the ancestor (`gpu_transport_not_supported`).
    """
    if name in (None, "none"):
        return
    if name != "cuda_ipc":
        raise ValueError(f"Unknown gpu_transport {name!r}: it is 'none'.")
    raise CapabilityError(
        f"gpu_transport={name!r} is not supported; arrays travel through host memory. Leave it at 'none'.",
        code="gpu_transport_not_supported",
    )


def from_environment(prefix: str = "TESSERACT_") -> dict[str, str]:
    """Settings that the environment gives, as text, by their names."""
    return {
        name: os.environ[variable]
        for name in RuntimeConfig.model_fields
        if (variable := f"{prefix}{name.upper()}") in os.environ
    }


def component_settings(
    settings: Mapping[str, Any] | None,
    input_path: str | Path | None,
    output_path: str | Path | None,
    output_format: str,
) -> ComponentConfig:
    """What a constructor of `Tesseract` was told, on top of `update_config` and the environment."""
    given: dict[str, Any] = {**from_environment(), **_updates.get(), "output_format": output_format}
    given |= {"input_path": input_path} if input_path is not None else {}
    given |= {"output_path": output_path} if output_path is not None else {}
    config = RuntimeConfig(**given | dict(settings or {}))
    _show_observations(config)
    return config.for_component(trusts_caller=True)


def _show_observations(config: RuntimeConfig) -> None:
    """Let profiles and traces that were asked for be seen, as there, where no logging is set up."""
    loggers = {
        "chainrule.runtime.profile": config.profiling,
        "chainrule.runtime.trace": config.tracing,
    }
    for name, is_wanted in loggers.items():
        logger = logging.getLogger(name)
        if is_wanted:
            logger.setLevel(logging.DEBUG)
            if not logger.hasHandlers():
                logger.addHandler(logging.StreamHandler())


def update_config(**settings: Any) -> None:
    """Set settings for components that are made, and models that are validated, from here on.

    They hold in this thread or task.

    Raises:
        pydantic.ValidationError: one of them does not exist or cannot have this value.
    """
    updates = {**_updates.get(), **settings}
    config = RuntimeConfig(**{**from_environment(), **updates})
    _updates.set(MappingProxyType(updates))
    # For models that are validated here, in no component: they may name files in the same folders.
    outside_config.set(
        ComponentConfig(input_path=config.input_path, output_path=config.output_path)
    )


def snapshot_config() -> Mapping[str, Any]:
    """What `update_config` has set so far, for `override_config`."""
    return _updates.get()


@contextmanager
def override_config(snapshot: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Have exactly the settings of a snapshot for a block; those of the environment alone without one."""
    token, outside = _updates.set(MappingProxyType({})), outside_config.set(None)
    try:
        if snapshot:
            update_config(**snapshot)
        yield
    finally:
        _updates.reset(token)
        outside_config.reset(outside)


def get_config() -> ComponentConfig | RuntimeConfig:
    """The settings of the component whose code is running; outside of any, what a new one would get."""
    run = Run.current()
    return RuntimeConfig(**{**from_environment(), **_updates.get()}) if run is None else run.config

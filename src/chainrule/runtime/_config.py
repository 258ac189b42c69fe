"""The settings of one component: an immutable object that is passed, never a process-wide state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from chainrule._codec import DEFAULT_LIMITS, Grants, Limits
from chainrule._errors import InputError

OutputFormat = Literal["json", "json+base64", "json+binref"]
ReferenceKind = Literal["api_path", "image", "url"]


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """What an operator may set for one component.

    Attributes:
        name: overrides the component's own name.
        version: overrides the component's own version.
        description: overrides the component's own description.
        input_path: the folder that callers may name files in (`InputPath`, binref arrays). `None` grants
            nothing.
        output_path: the folder for files of a run; created when the first file is written.
        allowed_urls: address prefixes that callers may name beside files.
        limits: how large, deep and many the data of one call may be.
        output_format: how arrays are written when the caller does not say.
        compression: `"lz4"` or `None`, for the formats that can be compressed.
        require_files: whether `require_file` looks for the file; off to describe a component elsewhere than
            where it runs.
        derive_hvp: take second derivatives by differencing the component's vector-Jacobian product where it
            has no `hessian_vector_product`.
        debug: send tracebacks to remote callers.
        profiling: log a profile of every endpoint call.
        tracing: log the arguments and results of every call, arrays abbreviated.
        keep_output: keep what is printed during a call in its run folder. The process's own output is
            redirected for that time: for components that are served, or in a process of their own.
        log_format: `text`, or `json` for one object per line with the id of the run; where the component is
            served.
        traces_to: where OpenTelemetry spans go, where the component is served: the address of an OTLP
            collector or a file.
        mlflow_tracking_uri: send metrics, parameters and artifacts to this MLflow store instead of
            local files.
        mlflow_run_extra_args: keyword arguments for `mlflow.start_run`.
        max_residual_bytes: bytes of what `apply` leaves for its derivatives (`WithResiduals`) and of the
            inputs that it belongs to, all calls together; 0 keeps nothing.
        device_exchange_share: how much of a GPU's memory a process of this component may take for arrays that
            it exchanges with others on this host.
        residual_folder: where processes of this component find each other's residuals.
        cache: names of components whose results are kept and given again for equal requests, where they are
            served; `"*"` for every component. Only for components that compute the same every time.
        cache_folder: where results are kept, for all processes that use it; in memory when not given.
        max_cache_bytes: bytes of all results that are kept.
        allow_references: the kinds of component references that are opened for a caller. Opening a path
            runs its code, opening an image starts a container, opening a URL sends requests: nothing is
            allowed unless it is listed here.

    Example:
        >>> ComponentConfig(name="solver", version="1.2.0").name
        'solver'
    """

    name: str | None = None
    version: str | None = None
    description: str | None = None
    input_path: Path | None = None
    output_path: Path = field(default_factory=Path.cwd)
    allowed_urls: tuple[str, ...] = ()
    limits: Limits = DEFAULT_LIMITS
    output_format: OutputFormat = "json"
    compression: Literal["lz4"] | None = None
    require_files: bool = True
    derive_hvp: bool = False
    debug: bool = False
    profiling: bool = False
    tracing: bool = False
    keep_output: bool = False
    log_format: Literal["text", "json"] = "text"
    traces_to: str = ""
    mlflow_tracking_uri: str = ""
    mlflow_run_extra_args: Mapping[str, Any] = field(default_factory=dict)
    max_residual_bytes: int = 1 << 30
    device_exchange_share: float = 0.25
    residual_folder: Path | None = None
    cache: frozenset[str] = frozenset()
    cache_folder: Path | None = None
    max_cache_bytes: int = 1 << 30
    allow_references: frozenset[ReferenceKind] = frozenset()

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if self.input_path is not None:
            set_field(self, "input_path", Path(self.input_path).resolve())
        set_field(self, "output_path", Path(self.output_path).resolve())
        set_field(self, "allow_references", frozenset(self.allow_references))
        set_field(
            self, "cache", frozenset((self.cache,) if isinstance(self.cache, str) else self.cache)
        )
        _check_choice("output_format", self.output_format, get_args(OutputFormat))
        _check_choice("compression", self.compression, (None, "lz4"))
        _check_choice("log_format", self.log_format, ("text", "json"))
        for kind in self.allow_references:
            _check_choice("allow_references", kind, get_args(ReferenceKind))

    @classmethod
    def make(cls, settings: ComponentConfig | Mapping[str, Any] | None) -> ComponentConfig:
        """A configuration from a configuration, a mapping of its fields, or nothing.

        Raises:
            InputError: the mapping has a key that is not a field (`unknown_setting`).
        """
        if isinstance(settings, ComponentConfig):
            return settings
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(settings or {}) - known)
        if unknown:
            raise InputError(
                f"Unknown setting {unknown[0]!r}. A component has: {', '.join(sorted(known))}.",
                code="unknown_setting",
                details={"unknown": unknown},
            )
        return cls(**(settings or {}))

    @cached_property
    def grants(self) -> Grants:
        """The files and addresses that a caller may name."""
        return Grants(self.input_path, self.output_path, tuple(self.allowed_urls))

    def replace(self, **changes: Any) -> ComponentConfig:
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)


def _check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    choices = tuple(choices)
    if value not in choices:
        raise InputError(
            f"Setting {name!r} is {value!r}; expected one of {', '.join(map(repr, choices))}.",
            code="bad_setting",
            details={"setting": name},
        )

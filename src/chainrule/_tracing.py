"""Places in a distributed trace: `traceparent` comes in with a call and goes out with the calls it makes.

Spans are recorded where OpenTelemetry is used in this process: by the author, by the operator's
`opentelemetry-instrument` or by `export_spans`. Elsewhere nothing is imported and nothing is recorded, but
the place in the trace is still passed on, so that a component without OpenTelemetry in the middle of a
pipeline does not break the trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from chainrule._errors import missing_dependency

Kind = Literal["SERVER", "CLIENT", "INTERNAL"]

_passed_on: ContextVar[str | None] = ContextVar("traceparent", default=None)
_TRACE = "opentelemetry.trace"


def is_traced(parent: str | None = None) -> bool:
    """Whether there is anything to do: spans are recorded here, or a place has to be passed on."""
    if parent is not None or _passed_on.get() is not None:
        return True
    trace = sys.modules.get(_TRACE)
    return trace is not None and _is_used(trace)


def _is_used(trace: Any) -> bool:
    """Whether there is a provider or a current span. Many libraries import OpenTelemetry and never use it.

    Making a span that is not recorded would cost more than a small call.
    """
    return (
        not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        or trace.get_current_span().get_span_context().is_valid
    )


@contextmanager
def span(
    name: str,
    *,
    kind: Kind,
    parent: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Record what happens inside as a span, where spans are recorded; elsewhere it costs next to nothing.

    Args:
        name: of the span.
        kind: whether a call is answered, made, or neither.
        parent: the caller's `traceparent`; the current span of this process when not given.
        attributes: small facts, never data.

    Yields:
        The span, or `None`.
    """
    if not is_traced(parent):
        yield None
        return
    trace = sys.modules.get(_TRACE)
    if trace is None:
        token = _passed_on.set(parent or _passed_on.get())
        try:
            yield None
        finally:
            _passed_on.reset(token)
        return
    context = None if parent is None else _propagator().extract({"traceparent": parent})
    tracer = trace.get_tracer("chainrule")
    with tracer.start_as_current_span(
        name, context=context, kind=trace.SpanKind[kind], attributes=dict(attributes or {})
    ) as current:
        yield current


def current_traceparent() -> str | None:
    """The present place in the trace, for a call that goes out; `None` outside of any."""
    if not is_traced():
        return None
    if _TRACE in sys.modules:
        carrier: dict[str, str] = {}
        _propagator().inject(carrier)
        if "traceparent" in carrier:
            return carrier["traceparent"]
    return _passed_on.get()


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def export_spans(destination: str, service: str) -> None:
    """Record spans of this process from now on, unless a provider is set already.

    Args:
        destination: address of an OTLP collector (`http://…/v1/traces`), or a file that gets one JSON
            object per line.
        service: name under which they appear.

    Raises:
        CapabilityError: the packages are not installed (`missing_dependency`).
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        if isinstance(trace.get_tracer_provider(), TracerProvider):
            return
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(_processor(destination))
    except ModuleNotFoundError as error:
        raise missing_dependency("Traces need", error.name, "'chainrule[traces]'") from error
    trace.set_tracer_provider(provider)


def _processor(destination: str) -> Any:
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    if destination.startswith(("http://", "https://")):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        # A worker may be ended at any time; at most half a second of spans is lost then.
        exporter = OTLPSpanExporter(endpoint=destination)
        return BatchSpanProcessor(exporter, schedule_delay_millis=500)
    file = open(destination, "a", encoding="utf-8")  # noqa: SIM115 - as long as the process
    return SimpleSpanProcessor(
        ConsoleSpanExporter(out=file, formatter=lambda one: one.to_json(indent=None) + "\n")
    )

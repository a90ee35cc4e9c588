"""Spans of the way of an event, by OpenTelemetry, exported by OTLP over HTTP.

Off, and free, unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set: only then the SDK is
imported. All its other standard variables hold, too. Telemetry that fails costs spans, never an event: nothing here
raises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import structlog

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

Value = str | int | bool
Operation = Literal["receive", "match", "deliver"]
Protocol = Literal["http", "grpc"]

SYSTEM: Final = "knative"
"""`messaging.system`, as Knative's data plane specification has it."""
_TYPES: Final[Mapping[Operation, tuple[str, str]]] = {
    "receive": ("receive", "SERVER"),
    "match": ("process", "INTERNAL"),
    "deliver": ("send", "CLIENT"),
}
"""`messaging.operation.type`, by OpenTelemetry's list, and the kind of span of what we call our operations."""
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_FLUSH_S_MAX: Final = 2.0
_HINT: Final = "Headgate works on without spans; see the variables OTEL_... and the packages opentelemetry-..."
_log = structlog.get_logger()


class Span:
    """Something that takes time; made by `Tracing.start`. The context (`traceparent`, `tracestate`) is sent along."""

    __slots__ = ("_span", "_tracing", "context")

    def __init__(self, tracing: Tracing, span: trace.Span | None, context: Mapping[str, str]) -> None:
        self._tracing = tracing
        self._span = span
        self.context = context

    def end(self, attributes: Mapping[str, Value] | None = None, *, error: str = "", at_us: int | None = None) -> None:
        """It is over. `error` is one of few texts, empty for none; `at_us` is since 1970 UTC, None for now."""
        if self._span is not None:
            self._tracing.end(self._span, attributes or {}, error, at_us)


class Tracing:
    """Makes spans and exports them; made by `configure`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("headgate")
        self._propagator = TraceContextTextMapPropagator()
        self._nothing = Context()
        self._trace = trace
        self._failed = False

    def start(
        self,
        operation: Operation,
        parent: Mapping[str, str],
        attributes: Mapping[str, Value],
        *,
        at_us: int | None = None,
    ) -> Span:
        """Begins a span below the context that came, empty to begin a trace; `at_us` as for `Span.end`."""
        type_, kind = _TYPES[operation]
        named = {"messaging.operation.name": operation, "messaging.operation.type": type_}
        try:
            span = self._tracer.start_span(
                operation,
                context=self._propagator.extract(parent, context=self._nothing),
                kind=self._trace.SpanKind[kind],
                attributes={**attributes, **named},
                start_time=None if at_us is None else at_us * 1_000,
            )
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier, context=self._trace.set_span_in_context(span, self._nothing))
        except Exception as error:  # noqa: BLE001 - of the SDK, or of a sampler that the environment names
            self._tell(error)
            return Span(self, None, parent)
        return Span(self, span, carrier)

    def end(self, span: trace.Span, attributes: Mapping[str, Value], error: str, at_us: int | None) -> None:
        try:
            span.set_attributes(dict(attributes))
            if error:
                span.set_attribute("error.type", error)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
            span.end(None if at_us is None else at_us * 1_000)
        except Exception as problem:  # noqa: BLE001 - as above
            self._tell(problem)

    def _tell(self, error: Exception) -> None:
        """One line a process: the next event's span fails in the same way."""
        if not self._failed:
            self._failed = True
            _log.error("spans cannot be made", error=_said(error), hint=_HINT)

    def close(self) -> None:
        """Exports what waits, for as long as a stop can wait for it."""
        # A collector that is away makes the exporter try again for longer than that.
        flush = threading.Thread(target=self._provider.force_flush, daemon=True)
        flush.start()
        flush.join(_FLUSH_S_MAX)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def configure(part: str) -> Tracing | None:
    """Tracing of this process as the environment asks for it; None when it does not, or when it cannot be had."""
    wanted = any(os.environ.get(name) for name in _ENDPOINTS)
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    try:
        from headgate.observe.span_export import provider

        return Tracing(provider(part))
    except Exception as error:  # noqa: BLE001 - of packages that do not fit together, and of any variable's value
        _log.error("spans cannot be made", error=_said(error), hint=_HINT)
        return None


def event_attributes(
    destination: str, protocol: Protocol, event_id: str, source: str, type_: str, version: str, subject: str | None
) -> dict[str, Value]:
    """A span's attributes for its event, by Knative's data plane specification and OpenTelemetry's conventions."""
    found: dict[str, Value] = {
        "messaging.system": SYSTEM,
        "messaging.destination": destination,
        "messaging.destination.name": destination,
        "messaging.protocol": protocol.upper(),
        "network.protocol.name": protocol,
        "messaging.message_id": event_id,
        "messaging.message.id": event_id,
        "cloudevents.event_id": event_id,
        "cloudevents.event_source": source,
        "cloudevents.event_type": type_,
        "cloudevents.event_spec_version": version,
    }
    if subject is not None:
        found["cloudevents.event_subject"] = subject
    return found


def destination(kind: Literal["broker", "trigger"], path: str) -> str:
    """`namespace/name` as spans name it."""
    namespace, _, name = path.partition("/")
    return f"{kind}:{name}.{namespace}"

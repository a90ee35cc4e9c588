"""Export of spans by OpenTelemetry's SDK. Importing it imports the SDK: only `tracing.configure` does.

A failure costs spans, and is one line of our log until an export succeeds again, in the place of the SDK's own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

_REASON_CHARS_MAX: Final = 300
_SDK: Final = "opentelemetry"
"""The logger above all of the SDK's loggers."""
_log = structlog.get_logger()


def provider(part: str) -> TracerProvider:
    """What makes spans of a part of the server, and exports them in batches, as the standard variables say."""
    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "headgate"}
    made = TracerProvider(resource=Resource.create({**name, "headgate.part": part}), shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(Exporter(OTLPSpanExporter(), capture_messages())))
    return made


class LastMessage(logging.Handler):
    """Keeps the last message of the SDK, which says why an export failed, and writes none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()[:_REASON_CHARS_MAX]


def capture_messages() -> LastMessage:
    """Captures what the SDK would log; it is written nowhere else."""
    words, sdk = LastMessage(), logging.getLogger(_SDK)
    sdk.handlers, sdk.propagate = [words], False
    return words


class Exporter(SpanExporter):
    """An exporter whose failure is logged once, until it works again."""

    def __init__(self, exporter: SpanExporter, words: LastMessage) -> None:
        self._exporter = exporter
        self._words = words
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Exports a batch; called in a thread of the SDK. Never raises."""
        try:
            result = self._exporter.export(spans)
            why = self._words.text
        except Exception as error:  # noqa: BLE001 - of a library, and of whatever it is configured to call
            result, why = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            _log.error("spans are not exported", error=why, hint="see OTEL_EXPORTER_OTLP_ENDPOINT; events go on")
        elif self._fails and not fails:
            _log.info("spans are exported again")
        self._fails = fails
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

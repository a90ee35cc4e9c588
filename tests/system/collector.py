"""An OTLP collector for tests: takes real protobuf over HTTP, remembers every span."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """What a test looks at: ids in hexadecimal, times in nanoseconds."""

    name: str
    part: str
    trace: str
    id: str
    parent: str
    state: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, str | int | bool]


class Collector:
    """Listens from the start; `spans` grows."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes
                    }
                    self.spans.append(
                        Span(
                            span.name,
                            about["headgate.part"],
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.trace_state,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code == span.status.STATUS_CODE_ERROR,
                            attributes,
                        )
                    )

    def of(self, trace: str) -> dict[str, list[Span]]:
        """Spans of a trace by name, the earliest first."""
        found: dict[str, list[Span]] = {}
        for span in sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.start_ns):
            found.setdefault(span.name, []).append(span)
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

"""Tracing is free when nobody asks for it, follows the environment, and costs nothing but spans when it fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from structlog.testing import capture_logs

from headgate.observe import span_export, tracing

CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def test_the_sdk_is_not_even_imported_when_nothing_is_configured() -> None:
    program = (
        "import sys; from headgate.observe import tracing; "
        "import headgate.server.processes.front, headgate.server.processes.dispatcher;"
        "assert tracing.configure('front') is None;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PATH": ""}, timeout=60)


@pytest.mark.parametrize(
    "environment", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}], ids=lambda env: next(iter(env))
)
def test_standard_variables_switch_it_off(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tracing.configure("front") is None


def _configured(tmp_path: Path, **environment: str) -> list[dict[str, str]]:
    """What a process says whose tracing is configured so, one line each; it goes on without."""
    program = (
        "from headgate.observe import logs, tracing; logs.configure('front');assert tracing.configure('front') is None"
    )
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | asked | environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return [msgspec.json.decode(line) for line in done.stderr.splitlines()]


def test_a_package_that_cannot_be_imported_costs_spans_only(tmp_path: Path) -> None:
    """As where two distributions install one file of it, and the wrong copy wins."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise TypeError('Couldn\\'t build proto file')")
    (line,) = _configured(tmp_path)
    assert (line["event"], line["level"]) == ("spans cannot be made", "error")
    assert line["error"] == "TypeError: Couldn't build proto file"


def test_a_value_that_the_sdk_refuses_costs_spans_only(tmp_path: Path) -> None:
    *_, line = _configured(tmp_path, OTEL_BSP_MAX_QUEUE_SIZE="-1")
    assert (line["event"], line["error"][:10]) == ("spans cannot be made", "ValueError")


class _Refusing(Sampler):
    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        raise RuntimeError("no sampler today")

    def get_description(self) -> str:
        return "refusing"


def test_a_span_that_cannot_be_made_passes_its_parents_context_on() -> None:
    failing = tracing.Tracing(TracerProvider(sampler=_Refusing(), shutdown_on_exit=False))
    with capture_logs() as lines:
        for _ in range(3):
            span = failing.start("receive", CONTEXT, {})
            assert span.context == CONTEXT
            span.end({"http.response.status_code": 202})
    assert [(line["event"], line["error"]) for line in lines] == [
        ("spans cannot be made", "RuntimeError: no sampler today")
    ]


class _Moody(ThreadingHTTPServer):
    """A collector that answers with `status`."""

    status = 400

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _MoodyHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _MoodyHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Moody)
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def moody() -> Iterator[_Moody]:
    running = _Moody()
    yield running
    running.shutdown()
    running.server_close()


def test_exports_that_fail_are_one_line_until_one_succeeds(
    moody: _Moody, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = logging.getLogger("opentelemetry")
    monkeypatch.setattr(sdk, "handlers", [])
    monkeypatch.setattr(sdk, "propagate", True)
    words = span_export.capture_messages()
    url = f"http://127.0.0.1:{moody.server_port}/v1/traces"
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(span_export.Exporter(OTLPSpanExporter(url), words)))
    made = tracing.Tracing(provider)
    with capture_logs() as lines:
        for status in (400, 400, 400, 200, 200, 400):
            moody.status = status
            made.start("receive", {}, {}).end()
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("spans are not exported", "error"),
        ("spans are exported again", "info"),
        ("spans are not exported", "error"),
    ]
    assert "400" in lines[0]["error"]
    assert caplog.records == [], "the SDK writes no lines of its own"

"""Is tracing free when nobody asks for it, and does the environment decide?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from headgate.observe import tracing


def test_the_sdk_is_not_even_imported_when_nothing_is_configured() -> None:
    program = (
        "import sys; from headgate.observe import tracing; import headgate.server.front, headgate.server.dispatcher;"
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

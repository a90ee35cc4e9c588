"""Can the checks fail? A tiny broker that does nearly everything wrong, and a URL where nobody is."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from headgate.testing.server import free_port
from headgate_cli.main import app
from headgate_conformance import broker
from headgate_conformance.broker import CaseStatus
from headgate_conformance.broker_context import BrokerAddress, CheckEnvironment

WRONG = {
    *("C03", "C04", "C05", "C06", "C08", "C09", "C10", "C11", "C12", "C15", "C16", "C17", "C18", "C19", "C20"),
    *("R02", "R03", "R04", "R05", "R08", "R09"),
    *("D02", "D03", "D04", "D06", "D08", "D10", "D11", "D12", "D13", "D14", "D17", "D18", "D19", "D20", "D21"),
}
"""What the wrong broker breaks. The others it keeps by accident (it accepts everything, and sends it)."""


class WrongBroker:
    """Accepts anything, is Ready at once, filters nothing, sends twice and never again, changes data and versions."""

    def __init__(self) -> None:
        wrong = self
        self.objects: dict[str, dict[str, Any]] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                path = urlsplit(self.path).path
                found: Any = {}
                if path.startswith("/apis/"):
                    found = wrong.api(self.command, path.rsplit("/", 2), body, self.server.server_address[1])
                elif path != "/metrics" and self.command == "POST":
                    threading.Thread(
                        target=wrong.send, args=(path.rpartition("/")[2], dict(self.headers), body)
                    ).start()
                answer = b"" if path == "/metrics" else json.dumps(found).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else answer)

            do_GET = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = do_HEAD = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WrongBroker:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def api(self, method: str, path: list[str], body: bytes, port: int) -> dict[str, Any]:
        name = path[2]
        if method in ("POST", "PUT"):
            item = json.loads(body)
            name = item["metadata"]["name"]
            item["metadata"]["generation"] = 1
            item["status"] = {
                "address": {"url": f"http://127.0.0.1:{port}/default/{name}"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "observedGeneration": 1,
            }
            self.objects[name] = item
        if method == "DELETE":
            return self.objects.pop(name, {})
        return self.objects.get(name, {})

    def send(self, broker: str, headers: dict[str, str], body: bytes) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._send(broker, headers, body)

    def _send(self, broker: str, headers: dict[str, str], body: bytes) -> None:
        for item in list(self.objects.values()):
            uri = item["spec"].get("subscriber", {}).get("uri", "")
            if not uri.startswith("http") or item["spec"].get("broker") != broker:
                continue
            parts = urlsplit(uri)
            changed = {k: v for k, v in headers.items() if k.lower().startswith("ce-")} | {"ce-specversion": "1.1"}
            for _ in range(2):
                connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
                with contextlib.closing(connection):  # also where the subscriber does not answer
                    connection.request("PUT", parts.path, body + b" ", changed)
                    connection.getresponse().read()


@pytest.fixture(scope="module")
def findings() -> Iterator[dict[str, broker.Finding]]:
    with WrongBroker() as wrong:
        where = BrokerAddress(
            f"{wrong.url}/default/default",
            api=wrong.url,
            metrics=f"{wrong.url}/metrics",
            patience_s=1.0,
            quiet_s=1.5,
        )
        with CheckEnvironment(where) as environment:
            yield {finding.id: finding for finding in broker.run(environment)}


@pytest.mark.slow
def test_a_wrong_broker_fails(findings: dict[str, broker.Finding]) -> None:
    passed = sorted(
        f"{name}: {findings[name].seen}" for name in WRONG if findings[name].result is not CaseStatus.FAILED
    )
    assert passed == []
    assert all(finding.seen for finding in findings.values())


@pytest.mark.slow
def test_what_cannot_be_seen_is_skipped_with_the_reason(findings: dict[str, broker.Finding]) -> None:
    assert findings["R01"].result is findings["D07"].result is CaseStatus.SKIPPED
    assert "--restart" in findings["R01"].seen


def test_without_an_api_only_what_a_url_shows_is_checked() -> None:
    with WrongBroker() as wrong:
        result = CliRunner().invoke(app, ["conformance", "--ingress", f"{wrong.url}/default/default", "--json"])
    *lines, summary = map(json.loads, result.output.splitlines())
    assert result.exit_code == 1
    seen = {line["id"]: line["result"] for line in lines if line["result"] != "skipped"}
    assert seen == {"D01": "passed", "D03": "failed", "D04": "failed", "D05": "passed", "D06": "failed"}
    assert (summary["checks"], summary["failed"], summary["skipped"]) == (50, 3, 45)


def test_nobody_at_the_url_is_a_failure_and_not_a_crash() -> None:
    started = time.monotonic()
    with CheckEnvironment(BrokerAddress(f"http://127.0.0.1:{free_port()}/default/default")) as environment:
        (finding,) = broker.run(environment, ["D05"])
    assert finding.result is CaseStatus.FAILED
    assert "is not answered" in finding.seen
    assert time.monotonic() - started < 30


def test_one_check_by_its_id_and_an_unknown_one() -> None:
    with WrongBroker() as wrong:
        ingress = f"{wrong.url}/default/default"
        result = CliRunner().invoke(app, ["conformance", "--ingress", ingress, "--only", "D05", "--markdown"])
        assert result.exit_code == 0
        assert result.output.splitlines()[-1] == "| D05 | MUST | 2xx for an accepted event | passed | 200 |"
        refused = CliRunner().invoke(app, ["conformance", "--ingress", ingress, "--only", "X1"])
    assert "X1" in refused.output

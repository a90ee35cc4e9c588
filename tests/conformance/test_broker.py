"""Does Headgate keep the Broker contract? Every requirement, against a real server; the report is the page in docs/."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headgate.testing.server import Server
from headgate_conformance import broker
from headgate_conformance.broker import CaseStatus
from headgate_conformance.broker_context import BrokerAddress, CheckEnvironment

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


class _Restarts:
    """Something that a command can ask to kill a server and start it again."""

    def __init__(self, server: Server) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.kill()
                server.start()
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        port = self._http.server_address[1]
        ask = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}', b'', 300)"
        self.command = shlex.join([sys.executable, "-c", ask])

    def __enter__(self) -> _Restarts:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[broker.Finding]]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(folder / "data", log=folder / "server.log"))
        restarts = stack.enter_context(_Restarts(server))
        where = BrokerAddress(
            f"{server.url}/default/default",
            api=server.url,
            metrics=f"{server.url}/metrics",
            restart=restarts.command,
        )
        yield broker.run(stack.enter_context(CheckEnvironment(where)))


def test_every_requirement_of_the_contract_is_kept(findings: list[broker.Finding]) -> None:
    wanted = [f"{part}{n:02}" for part, count in (("C", 20), ("R", 9), ("D", 21)) for n in range(1, count + 1)]
    assert [finding.id for finding in findings] == wanted
    others = [f"{f.id} {f.level} {f.result}: {f.seen}" for f in findings if f.result is not CaseStatus.PASSED]
    assert others == []


def test_the_page_is_what_was_seen(findings: list[broker.Finding]) -> None:
    page = ROOT / "docs/reference/conformance.md"
    before, _, _ = page.read_text().partition("| id | level |")
    written = before + broker.table(findings)
    if os.environ.get("HEADGATE_WRITE_PAGES"):
        page.write_text(written)
    assert page.read_text() == written, "make conformance writes it anew"
